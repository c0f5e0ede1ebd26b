"""The layout of a publish entry: prefix, optional notes, block.

Owns: the prefixes of publish and mirror entries, the notes (bounds and fast batch marks) and their
bytes.
May not touch: what an entry does when it is applied (broker/jetstream/publish).
Spec: docs/decisions/0011-publish-notes.md; NATS ADR-50 (fast batches).

Applying an entry must not depend on anything outside the replicated stream, so facts that apply
cannot look up are written into the entry. The node that received a publish reads the fast batch
marks from the reply subjects; the leader adds the bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct as Packing
from typing import Final

import msgspec

from broker.jetstream.commands.stream_commands import CommandKind

# kind, rules, time_ns, from_node, session, batch_no; the bytes of a Block follow
PUBLISH_PREFIX: Final = Packing("<BB6xqQQQ")
PUBLISH_PREFIX_SIZE: Final = PUBLISH_PREFIX.size
# Rules by which every replica checks the messages of an entry; the leader writes them into it. 0:
# those of version 0.1. 1: a header without a value counts as absent, a batch may require any API
# level that this server has, and an invalid TTL is reported as such even where none is allowed.
RULES: Final = 1
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
    """How many bytes this stream may hold, given what its leader knows about other streams.

    `account`: a message that would take the stream above it is refused.
    `server`: once the stream is above it, every message is refused."""

    account: int = UNBOUNDED
    server: int = UNBOUNDED


NO_SPACE: Final = Bounds(server=-1)  # refuses every message


class FastOp(IntEnum):
    """What a message of a fast batch asks for: the last number in its reply subject."""

    MALFORMED = -1
    START = 0
    APPEND = 1
    COMMIT = 2
    COMMIT_WITHOUT = 3  # the message of the commit is not stored
    PING = 4


class FastSpan(msgspec.Struct, array_like=True, frozen=True):
    """Rows `row` to `row + count - 1` are consecutive messages of one fast batch, starting with its
    message number `seq`. Only appends form spans of more than one row."""

    row: int
    count: int
    op: int
    id: bytes = b""
    flow: int = FLOW_DEFAULT
    gap_ok: bool = False
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Notes:
    """What a publish entry carries besides its block."""

    bounds: Bounds | None = None
    spans: Sequence[FastSpan] = ()


NO_NOTES: Final = Notes()
_spans: Final = msgspec.msgpack.Decoder(list[FastSpan])
_encode: Final = msgspec.msgpack.Encoder().encode


def fast_spans(marked: Iterable[tuple[int, bytes]]) -> list[FastSpan]:
    """The spans of the given (row, reply), ascending; the replies end in FAST_SUFFIX."""
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
    """Parse `<prefix>.<id>.<flow>.<gap>.<seq>.<op>.$FI` from the end."""
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


# -- encoding --------------------------------------------------------------------------------------


def publish_prefix(
    *, time_ns: int, from_node: int, session: int, batch_no: int, rules: int = RULES
) -> bytes:
    """Goes before the block of a batch. `from_node` 0: no session, so no duplicate detection."""
    return PUBLISH_PREFIX.pack(CommandKind.PUBLISH, rules, time_ns, from_node, session, batch_no)


def noted_prefix(
    *,
    time_ns: int,
    from_node: int,
    session: int,
    batch_no: int,
    bounds: Bounds | None,
    rules: int = RULES,
) -> bytes:
    """Like publish_prefix, for an entry with notes: the result of `encode_marks` and the block
    follow."""
    kind = CommandKind.NOTED_PUBLISH
    prefix = PUBLISH_PREFIX.pack(kind, rules, time_ns, from_node, session, batch_no)
    return prefix + encode_bounds(bounds)


def entry_prefix(
    *,
    time_ns: int,
    from_node: int,
    session: int,
    batch_no: int,
    bounds: Bounds | None,
    marks: bytes,
    rules: int,
) -> bytes:
    """Goes before the block of a batch: with notes, if there are any."""
    if bounds is None and not marks:
        kind = CommandKind.PUBLISH
        return PUBLISH_PREFIX.pack(kind, rules, time_ns, from_node, session, batch_no)
    named = {"from_node": from_node, "session": session, "batch_no": batch_no, "rules": rules}
    return noted_prefix(time_ns=time_ns, bounds=bounds, **named) + (marks or NO_MARKS)


def mirror_prefix(*, time_ns: int) -> bytes:
    """Goes before a block with the origin's sequences and times; gaps become skipped sequences.

    Rows at or below the stream's last sequence are repeats and are skipped, so no session is
    needed."""
    return PUBLISH_PREFIX.pack(CommandKind.MIRROR_BATCH, 0, time_ns, 0, 0, 0)


def encode_marks(spans: Sequence[FastSpan]) -> bytes:
    """The bytes between bounds and block: size, encoded spans, padding."""
    if not spans:
        return NO_MARKS
    raw = _encode(spans)
    return _SIZE.pack(len(raw)) + raw + bytes(-len(raw) % _ALIGN)


def encode_bounds(bounds: Bounds | None) -> bytes:
    bounds = bounds or Bounds()
    return _BOUNDS.pack(bounds.account, bounds.server)


def decode_notes(data: memoryview) -> tuple[Notes, memoryview]:
    """Returns the notes and the bytes of the block that follows them."""
    bounds = Bounds(*_BOUNDS.unpack_from(data))
    (size,) = _SIZE.unpack_from(data, _BOUNDS.size)
    start = _BOUNDS.size + _SIZE.size
    spans = _spans.decode(data[start : start + size]) if size else []
    return Notes(bounds, spans), data[start + size + -size % _ALIGN :]
