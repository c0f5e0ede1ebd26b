"""The value of a Nats-TTL header, and the time it means for a stored message.

Owns: reading it.
May not touch: messages; they go when an Expire command says so.
Spec: JetStream sheet 3.2: whole seconds, a Go duration of at least one second, or "never"."""

from __future__ import annotations

import re
from typing import Final

from broker.store import deadlines
from broker.store.block import Block
from broker.store.deadlines import Deadlines
from broker.wire import headers as wire_headers

NEVER: Final = -1
_HEADER: Final = b"Nats-TTL"
_PART: Final = re.compile(rb"(\d+)(?:\.(\d*))?(ns|us|\xc2\xb5s|\xce\xbcs|ms|s|m|h)|\.(\d+)(s|m|h)")
_UNIT_NS: Final = {
    b"ns": 1,
    b"us": 1_000,
    b"\xc2\xb5s": 1_000,
    b"\xce\xbcs": 1_000,
    b"ms": 1_000_000,
    b"s": 1_000_000_000,
    b"m": 60_000_000_000,
    b"h": 3_600_000_000_000,
}
_SECOND_NS: Final = 1_000_000_000
_NS_MAX: Final = 2**63 - 1


def parse_ttl(value: bytes) -> int | None:
    """Seconds (cut to whole ones), NEVER, or None when it is no valid time to live."""
    if value.lower() == b"never":
        return NEVER
    if value.isdigit():
        seconds = int(value)
    else:
        duration = duration_ns(value)
        if duration is None or duration < _SECOND_NS:
            return None
        seconds = duration // _SECOND_NS
    return seconds if 1 <= seconds <= _NS_MAX // _SECOND_NS else None


def due_at(time_ns: int, ttl: int) -> int:
    """When a message stored at `time_ns` is to go."""
    return deadlines.NEVER if ttl == NEVER else time_ns + ttl * _SECOND_NS


def note_deadlines(block: Block, into: Deadlines, *, above: int) -> None:
    """Of rows that come with their sequences and times; a value nobody can read means none."""
    if not block.headers_len or not block.any_nats_header():
        return
    for row in range(block.first_at_or_after(above + 1), block.rows):
        headers = block.headers(row)
        value = wire_headers.get(headers, _HEADER) if _HEADER in headers else None
        ttl = parse_ttl(value) if value is not None else None
        if ttl is not None:
            into.set(block.seq(row), due_at(block.time(row), ttl))


def duration_ns(text: bytes) -> int | None:
    """A Go duration: numbers with units, one after another."""
    total = at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            return None
        whole, fraction, unit = part[1] or b"0", part[2] or part[4] or b"", part[3] or part[5]
        total += int(whole) * _UNIT_NS[unit]
        total += int(fraction or b"0") * _UNIT_NS[unit] // 10 ** len(fraction)
        at = part.end()
    return total if text else None
