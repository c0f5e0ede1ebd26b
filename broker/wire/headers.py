"""Header blocks: `NATS/1.0[ code[ text]] CR LF (Name: value CR LF)* CR LF`, as raw bytes.

Owns: reading and building one block. Bytes are opaque: case, order and repeats are kept.
May not touch: what a header means, message bodies.
Spec: NATS header format; JetStream looks names up case-sensitively."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

VERSION: Final = b"NATS/1.0"
_EOL: Final = b"\r\n"


def parse(raw: bytes) -> list[tuple[bytes, bytes]]:
    """Name and value of each line, in order. Lines without a colon are skipped."""
    pairs = []
    for line in raw.split(_EOL)[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            pairs.append((name, value.lstrip(b" ")))
    return pairs


def get(raw: bytes, name: bytes) -> bytes | None:
    """The first value of `name`, exact case, leading spaces skipped; None when absent."""
    wanted = b"\r\n%b:" % name
    at = raw.find(wanted)
    if at < 0:
        return None
    start = at + len(wanted)
    end = raw.find(_EOL, start)
    return raw[start : end if end >= 0 else len(raw)].lstrip(b" ")


def build(status_line: bytes, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A block. `status_line` is b"", b"503", b"404 No Messages" or the whole first line."""
    if status_line.startswith(VERSION):
        first = status_line
    else:
        first = VERSION + (b" " + status_line if status_line else b"")
    return first + _EOL + _lines(pairs) + _EOL


def add(raw: bytes, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """`raw` with lines added at its end; a new block when there was none."""
    if not raw:
        return build(b"", pairs)
    return raw.removesuffix(_EOL) + _lines(pairs) + _EOL


def add_lines(raw: bytes, lines: bytes) -> bytes:
    """Like `add`, for complete lines that include their line endings."""
    return (raw.removesuffix(_EOL) if raw else VERSION + _EOL) + lines + _EOL


def without(raw: bytes, *starts: bytes) -> bytes:
    """`raw` without the lines that start with one of `prefixes`; empty when no line is left.

    To match a whole header name, include the colon: b"Nats-TTL:"."""
    lines = raw.split(_EOL)
    kept = [line for line in lines[1:] if line and not line.startswith(starts)]
    return _EOL.join([lines[0], *kept, b"", b""]) if kept else b""


def status(raw: bytes) -> tuple[int, bytes]:
    """Code and text of the first line; (0, b"") when it carries no status."""
    first = raw.partition(_EOL)[0]
    if not first.startswith(VERSION):
        return 0, b""
    code, _, text = first[len(VERSION) :].strip(b" ").partition(b" ")
    if not (code.isdigit() and len(code) <= 9):
        return 0, b""
    return int(code), text.lstrip(b" ")


def _lines(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b: %b\r\n" % pair for pair in pairs)
