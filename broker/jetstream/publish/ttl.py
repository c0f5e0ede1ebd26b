"""The value of a Nats-TTL header, and the time it means for a stored message.

Owns: reading it.
May not touch: messages; they go when an Expire command says so.
Spec: JetStream sheet 3.2: whole seconds, a Go duration of at least one second, or "never"."""

from __future__ import annotations

from typing import Final

from broker.jetstream.times import NS_MAX, parse_go_duration
from broker.store import deadlines
from broker.store.block.block import Block
from broker.store.deadlines import Deadlines
from broker.wire import headers as wire_headers

NEVER: Final = -1
_HEADER: Final = b"Nats-TTL"
_SECOND_NS: Final = 1_000_000_000
_DIGITS_MAX: Final = 10  # of seconds whose nanoseconds an int64 holds


def parse_ttl(value: bytes) -> int | None:
    """Seconds (cut to whole ones), NEVER, or None when it is no valid time to live."""
    if value.lower() == b"never":
        return NEVER
    if value.isdigit():
        seconds = int(value) if len(value) <= _DIGITS_MAX else 0
    else:
        duration = parse_go_duration(value.decode(errors="replace"))
        if duration is None or duration < _SECOND_NS:
            return None
        seconds = duration // _SECOND_NS
    return seconds if 1 <= seconds <= NS_MAX // _SECOND_NS else None


def due_at(time_ns: int, ttl: int) -> int:
    """When a message stored at `time_ns` is to go."""
    return deadlines.NEVER if ttl == NEVER else min(time_ns + ttl * _SECOND_NS, deadlines.NEVER)


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
