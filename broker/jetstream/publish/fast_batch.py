"""Messages of fast batches: stored as they come, answered now and then.

Owns: what each message of a fast batch leads to and what its publisher is told.
May not touch: the checks and the storing of one message (single.py).
A publisher is told little: that a batch has begun, how far it is, of gaps and errors, and of its
end. Everything is decided when applied, so the next leader says the same.
Spec: JetStream sheet 3.8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from broker.jetstream.commands.publish_entry import Bounds, FastOp, FastSpan
from broker.jetstream.config.api_levels import REQUIRED_LEVEL_HEADER, level_is_met
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.publish.checks import BATCH_ID_BYTES_MAX, refusal_in_batch
from broker.jetstream.publish.message import IncomingMessage
from broker.jetstream.publish.open_fast_batches import OPEN_MAX, FastBatch
from broker.jetstream.publish.sessions import Duplicate, RowAnswer, Said, Stored
from broker.jetstream.publish.single_message import publish_single
from broker.jetstream.strict_json import to_wire

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream

_encode: Final = msgspec.json.encode


def marks_by_row(spans: Sequence[FastSpan]) -> dict[int, FastSpan]:
    """Each row's own mark."""
    return {
        span.row + k: msgspec.structs.replace(span, row=span.row + k, count=1, seq=span.seq + k)
        for span in spans
        for k in range(span.count)
    }


# -- whole blocks ----------------------------------------------------------------------------------


def goes_on(stream: Stream, spans: Sequence[FastSpan], rows: int) -> bool:
    """Whether every row of a block is the next message of a fast batch, to be stored."""
    if not stream.config.allow_batched or sum(span.count for span in spans) != rows:
        return False
    fast, last = stream.fast_batches, dict[bytes, int]()
    for span in spans:
        batch = fast.get(span.id)
        before = last.get(span.id, batch.last if batch is not None else -1)
        match span.op:
            case FastOp.START if before < 0 and len(span.id) <= BATCH_ID_BYTES_MAX:
                before = 0
            case FastOp.APPEND | FastOp.COMMIT if before > 0:
                pass
            case _:
                return False
        if span.seq != before + 1:
            return False
        last[span.id] = before + span.count if span.op != FastOp.COMMIT else -1
    return len(fast) + len(last) <= OPEN_MAX


def advance(
    stream: Stream, spans: Sequence[FastSpan], first: int, now_ns: int
) -> list[tuple[int, RowAnswer]]:
    """A block that goes on was stored from `first` on: what its publishers are told."""
    fast = stream.fast_batches
    told: list[tuple[int, RowAnswer]] = []
    for span in spans:
        end = span.row + span.count - 1
        batch = fast.get(span.id)
        if batch is None:
            batch = fast.begin(span.id, flow=span.flow, gap_ok=span.gap_ok, now_ns=now_ns)
            told.append((end, _flow_ack(0, batch)))
        batch.touched_ns = now_ns
        batch.last += span.count
        batch.stored = first + end
        if span.op == FastOp.COMMIT:
            told.append((end, _commit(stream, batch)))
        elif fast.flow_due(batch):
            told.append((end, _flow_ack(batch.acked, batch)))
    return told


# -- one by one ------------------------------------------------------------------------------------


def publish_fast(
    stream: Stream, message: IncomingMessage, mark: FastSpan, bounds: Bounds | None
) -> list[RowAnswer]:
    """What the publisher is told, in order; often nothing."""
    refused = _refused_at_once(stream, message, mark, bounds)
    if refused is not None:
        return [refused]
    fast = stream.fast_batches
    batch = fast.get(mark.id)
    if batch is None:
        if mark.seq != 1 or mark.op == FastOp.PING:
            return [JetStreamError(ErrCode.BATCH_PUBLISH_UNKNOWN_BATCH_ID)]
        if len(fast) >= OPEN_MAX:
            return [JetStreamError(ErrCode.BATCH_PUBLISH_TOO_MANY_INFLIGHT)]
        batch = fast.begin(mark.id, flow=mark.flow, gap_ok=mark.gap_ok, now_ns=message.time_ns)
    if not level_is_met(message.named.get(REQUIRED_LEVEL_HEADER)):
        fast.end(batch)
        return [JetStreamError(ErrCode.REQUIRED_API_LEVEL)]
    message.drop_header(REQUIRED_LEVEL_HEADER)
    batch.touched_ns = message.time_ns
    if mark.op == FastOp.PING:
        return _ping(stream, batch, mark)
    told: list[RowAnswer] = []
    if not _in_order(batch, mark, told):
        return [*told, _commit(stream, batch)]
    if mark.op == FastOp.COMMIT_WITHOUT:
        batch.last -= 1
        return [*told, _commit(stream, batch)]
    if mark.seq == 1 and mark.op != FastOp.COMMIT:
        told.append(_flow_ack(0, batch))
    return told + _store(stream, message, mark, batch, bounds)


def _refused_at_once(
    stream: Stream, message: IncomingMessage, mark: FastSpan, bounds: Bounds | None
) -> JetStreamError | None:
    """These leave an open batch as it is."""
    refused = refusal_in_batch(stream, message, bounds)
    if refused is not None:
        return refused
    if not stream.config.allow_batched:
        return JetStreamError(ErrCode.BATCH_PUBLISH_DISABLED)
    if mark.op == FastOp.MALFORMED:
        return JetStreamError(ErrCode.BATCH_PUBLISH_INVALID_PATTERN)
    if len(mark.id) > BATCH_ID_BYTES_MAX:
        return JetStreamError(ErrCode.BATCH_PUBLISH_INVALID_BATCH_ID)
    return None


def _ping(stream: Stream, batch: FastBatch, mark: FastSpan) -> list[RowAnswer]:
    """How far are we? Its sequence is the highest one sent, so a gap shows."""
    told: list[RowAnswer] = []
    if mark.seq > batch.last:
        told.append(_gap(batch.last + 1, mark.seq + 1))
        if not batch.gap_ok:
            return [*told, _commit(stream, batch)]
        batch.last = mark.seq
        stream.fast_batches.flow_due(batch)
    return [*told, _flow_ack(batch.acked, batch)]


def _in_order(batch: FastBatch, mark: FastSpan, told: list[RowAnswer]) -> bool:
    """Count the message. False: it came out of order and ends the batch."""
    expected = batch.last + 1
    if mark.seq != expected:
        told.append(_gap(expected, mark.seq))
        if mark.seq < expected or not batch.gap_ok:
            return False
    batch.last = mark.seq
    return True


def _store(
    stream: Stream,
    message: IncomingMessage,
    mark: FastSpan,
    batch: FastBatch,
    bounds: Bounds | None,
) -> list[RowAnswer]:
    fast, commits = stream.fast_batches, mark.op == FastOp.COMMIT
    answer = publish_single(stream, message, bounds)
    if isinstance(answer, JetStreamError):
        return _failed(stream, mark, batch, answer)
    duplicate = isinstance(answer, Duplicate)
    if isinstance(answer, Duplicate) and commits and not mark.gap_ok and batch.last == 1:
        fast.end(batch)
        return [Duplicate(answer.seq, batch=mark.id.decode(errors="replace"))]
    if not duplicate:
        batch.stored = stream.store.last_seq
    told: list[RowAnswer] = []
    if (duplicate or not commits) and fast.flow_due(batch):
        told.append(_flow_ack(batch.acked, batch))
    return [*told, _commit(stream, batch)] if commits else told


def _failed(
    stream: Stream, mark: FastSpan, batch: FastBatch, error: JetStreamError
) -> list[RowAnswer]:
    """A batch that fails with its first message is no batch; with gaps allowed it goes on."""
    if not mark.gap_ok and batch.last == 1:
        stream.fast_batches.end(batch)
        return [error]
    said = {"type": "err", "seq": mark.seq, "error": to_wire(error.body())}
    told: list[RowAnswer] = [Said(_encode(said).decode())]
    if mark.gap_ok and mark.op != FastOp.COMMIT:
        return told
    batch.last -= 1
    return [*told, _commit(stream, batch)]


def _commit(stream: Stream, batch: FastBatch) -> Stored:
    """The batch ends with what is stored of it."""
    stream.fast_batches.end(batch)
    return Stored(batch.stored, batch=batch.id.decode(errors="replace"), count=batch.last)


def _flow_ack(seq: int, batch: FastBatch) -> Said:
    return Said(f'{{"type":"ack","seq":{seq},"msgs":{batch.every}}}')


def _gap(expected: int, got: int) -> Said:
    return Said(f'{{"type":"gap","last_seq":{expected},"seq":{got}}}')
