"""What a batch of publishes may carry besides its block: bounds, and marks of fast batches.

Owns: the two kinds of notes and their bytes.
May not touch: what they lead to (publish.py, fast_publish.py).
The node that received a publish reads the marks from its reply subject; the leader adds the
bounds. Both are facts that apply cannot look up, so they are written into the entry.
Spec: JetStream sheet 3.3 (15, 17), 3.8."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct as Packing
from typing import Final

import msgspec

FAST_SUFFIX: Final = b".$FI"
FLOW_DEFAULT: Final = 10
FLOW_MAX: Final = 65535
UNBOUNDED: Final = 2**63 - 1
_SEQUENCE_MAX: Final = 2**64 - 2
_DIGITS_MAX: Final = 20
_ALIGN: Final = 8
_SIZE: Final = Packing("<Q")
_BOUNDS: Final = Packing("<qq")
NO_MARKS: Final = _SIZE.pack(0)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many bytes the stream may hold, as its leader saw the other streams.

    `account`: a message that would end above it is refused. `server`: nothing is taken once
    the stream is above it."""

    account: int = UNBOUNDED
    server: int = UNBOUNDED


class FastOp(IntEnum):
    MALFORMED = -1
    START = 0
    APPEND = 1
    COMMIT = 2
    COMMIT_WITHOUT = 3  # the message of the commit is not stored
    PING = 4


class FastSpan(msgspec.Struct, array_like=True, frozen=True):
    """`count` rows from `row` on: consecutive messages of one fast batch, the first is `seq`.

    Only appends make spans of more than one row."""

    row: int
    count: int
    op: int
    id: bytes = b""
    flow: int = FLOW_DEFAULT
    gap_ok: bool = False
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Notes:
    bounds: Bounds | None = None
    spans: Sequence[FastSpan] = ()


NO_NOTES: Final = Notes()
_spans: Final = msgspec.msgpack.Decoder(list[FastSpan])
_encode: Final = msgspec.msgpack.Encoder().encode


def fast_spans(marked: Iterable[tuple[int, bytes]]) -> list[FastSpan]:
    """Of rows, ascending, with replies that end in FAST_SUFFIX."""
    found: list[FastSpan] = []
    for row, reply in marked:
        span = _parsed(row, reply)
        last = found[-1] if found else None
        if (
            last is not None
            and last.op == span.op == FastOp.APPEND
            and last.row + last.count == row
            and (last.id, last.flow, last.gap_ok) == (span.id, span.flow, span.gap_ok)
            and last.seq + last.count == span.seq
        ):
            found[-1] = msgspec.structs.replace(last, count=last.count + 1)
        else:
            found.append(span)
    return found


def _parsed(row: int, reply: bytes) -> FastSpan:
    """`<prefix>.<id>.<flow>.<gap>.<seq>.<op>.$FI`, read from the end."""
    malformed = FastSpan(row, 1, FastOp.MALFORMED)
    words = reply.rsplit(b".", 6)
    if len(words) != 7:
        return malformed
    _, batch_id, flow_word, gap, seq_word, op_word, _ = words
    op, seq = _number(op_word), _number(seq_word)
    if not FastOp.START <= op <= FastOp.PING or not 1 <= seq <= _SEQUENCE_MAX:
        return malformed
    if gap not in (b"ok", b"fail"):
        return malformed
    if (op == FastOp.START) != (seq == 1) and op in (FastOp.START, FastOp.APPEND):
        return malformed
    if op == FastOp.COMMIT_WITHOUT and seq == 1:
        return malformed
    flow = _number(flow_word)
    flow = min(flow, FLOW_MAX) if flow > 0 else FLOW_DEFAULT
    return FastSpan(row, 1, op, batch_id, flow, gap == b"ok", seq)


def _number(word: bytes) -> int:
    return int(word) if word.isdigit() and len(word) <= _DIGITS_MAX else -1


# -- bytes -----------------------------------------------------------------------------------------


def encode_marks(spans: Sequence[FastSpan]) -> bytes:
    """What goes before the block: its own size, the spans, and padding."""
    if not spans:
        return NO_MARKS
    raw = _encode(spans)
    return _SIZE.pack(len(raw)) + raw + bytes(-len(raw) % _ALIGN)


def encode_bounds(bounds: Bounds | None) -> bytes:
    bounds = bounds or Bounds()
    return _BOUNDS.pack(bounds.account, bounds.server)


def decode_notes(data: memoryview) -> tuple[Notes, memoryview]:
    """The notes, and the block behind them."""
    bounds = Bounds(*_BOUNDS.unpack_from(data))
    (size,) = _SIZE.unpack_from(data, _BOUNDS.size)
    start = _BOUNDS.size + _SIZE.size
    spans = _spans.decode(data[start : start + size]) if size else []
    return Notes(bounds, spans), data[start + size + -size % _ALIGN :]
