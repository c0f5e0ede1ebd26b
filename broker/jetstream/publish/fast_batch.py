"""Fast batches: messages are stored as they come, and their publisher gets flow acks.

Owns: the open fast batches (the position of each, how often it is acked, when an idle one is
dropped), the effect of each message of a batch, and the replies to its publisher.
May not touch: how one message is checked and stored (message_writer.py), clocks.
Spec: NATS ADR-50 (fast batch publishing); docs/decisions/0011-publish-notes.md.

A publisher gets few replies: the batch has begun, flow acks, gaps, errors, the final ack. The state
of open batches is replicated and every reply is decided at apply, so after a change of leader the
new leader sends the same replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from broker.jetstream.commands.publish_entry import Bounds, FastOp, FastSpan
from broker.jetstream.config.api_levels import REQUIRED_LEVEL_HEADER, applied_level_is_met
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.incoming_message import IncomingMessage
from broker.jetstream.publish.checks import BATCH_ID_BYTES_MAX, refusal_in_batch
from broker.jetstream.publish.message_writer import MessageWriter
from broker.jetstream.publish.sessions import Duplicate, FastBatchReply, RowAnswer, Stored
from broker.jetstream.strict_json import to_wire
from broker.jetstream.times import NS_PER_S

_encode: Final = msgspec.json.encode
OPEN_MAX: Final = 1000
IDLE_NS: Final = 10 * NS_PER_S
SHARED_FLOW: Final = 500  # messages between two acks, divided among all open batches


class FastBatch(msgspec.Struct, array_like=True):
    """One open batch."""

    id: bytes
    touched_ns: int
    gap_ok: bool
    flow: int  # messages between two acks, at most; the publisher's choice
    every: int  # messages between two acks at present
    last: int = 0  # highest batch sequence received
    acked: int = 0  # batch sequence of the last flow ack
    stored: int = 0  # stream sequence of its last message


@dataclass(slots=True)
class FastBatches:
    """The open fast batches of one stream."""

    _open: dict[bytes, FastBatch] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def get(self, batch_id: bytes) -> FastBatch | None:
        return self._open.get(batch_id)

    def begin(self, batch_id: bytes, *, flow: int, gap_ok: bool, now_ns: int) -> FastBatch:
        """The only open batch begins with its publisher's flow, any other one with 1."""
        every = 1 if self._open else min(SHARED_FLOW, flow)
        batch = self._open[batch_id] = FastBatch(batch_id, now_ns, gap_ok, flow, every)
        return batch

    def end(self, batch: FastBatch) -> None:
        self._open.pop(batch.id, None)

    def clear(self) -> None:
        self._open.clear()

    def flow_due(self, batch: FastBatch) -> bool:
        """Whether a flow ack is due; if so, `acked` and `every` are set to what it says.

        `every` doubles or halves towards an equal share of SHARED_FLOW."""
        if batch.last < batch.acked + batch.every:
            return False
        batch.acked += (batch.last - batch.acked) // batch.every * batch.every
        share = min(max(SHARED_FLOW // len(self._open), 1), batch.flow)
        if batch.every < share:
            batch.every = min(batch.every * 2, share)
        else:
            batch.every = max(batch.every // 2, share)
        return True

    def next_expiry(self) -> int | None:
        return min((b.touched_ns for b in self._open.values()), default=-IDLE_NS) + IDLE_NS or None

    def expire(self, now_ns: int) -> None:
        """Drop idle batches; their publishers are not notified."""
        for batch in [b for b in self._open.values() if b.touched_ns + IDLE_NS <= now_ns]:
            self.end(batch)

    def image(self) -> list[FastBatch]:
        return [msgspec.structs.replace(batch) for batch in self._open.values()]

    @classmethod
    def of(cls, images: list[FastBatch]) -> FastBatches:
        return cls({image.id: image for image in images})


def marks_by_row(spans: Sequence[FastSpan]) -> dict[int, FastSpan]:
    """The mark of each row, as a span of one row."""
    return {
        span.row + k: msgspec.structs.replace(span, row=span.row + k, count=1, seq=span.seq + k)
        for span in spans
        for k in range(span.count)
    }


# -- whole blocks ----------------------------------------------------------------------------------


def continues_batches(fast: FastBatches, spans: Sequence[FastSpan], rows: int) -> bool:
    """True if every row of a block is the next message of its fast batch and is to be stored."""
    if sum(span.count for span in spans) != rows:
        return False
    last: dict[bytes, int] = {}
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
    fast: FastBatches, spans: Sequence[FastSpan], first: int, now_ns: int
) -> list[tuple[int, RowAnswer]]:
    """A block for which `continues_batches` holds was stored from sequence `first` on. Returns the
    replies to the publishers, by row."""
    replies: list[tuple[int, RowAnswer]] = []
    for span in spans:
        end = span.row + span.count - 1
        batch = fast.get(span.id)
        if batch is None:
            batch = fast.begin(span.id, flow=span.flow, gap_ok=span.gap_ok, now_ns=now_ns)
            replies.append((end, _flow_ack(0, batch)))
        batch.touched_ns = now_ns
        batch.last += span.count
        batch.stored = first + end
        if span.op == FastOp.COMMIT:
            replies.append((end, _commit(fast, batch)))
        elif fast.flow_due(batch):
            replies.append((end, _flow_ack(batch.acked, batch)))
    return replies


# -- row by row ------------------------------------------------------------------------------------


def publish_fast(
    writer: MessageWriter,
    fast: FastBatches,
    message: IncomingMessage,
    mark: FastSpan,
    bounds: Bounds | None,
) -> list[RowAnswer]:
    """Take one message. Returns the replies to its publisher, in order; often there is none."""
    refused = _refused_at_once(writer, message, mark, bounds)
    if refused is not None:
        return [refused]
    batch = fast.get(mark.id)
    if batch is None:
        if mark.seq != 1 or mark.op == FastOp.PING:
            return [JetStreamError(ErrCode.BATCH_PUBLISH_UNKNOWN_BATCH_ID)]
        if len(fast) >= OPEN_MAX:
            return [JetStreamError(ErrCode.BATCH_PUBLISH_TOO_MANY_INFLIGHT)]
        batch = fast.begin(mark.id, flow=mark.flow, gap_ok=mark.gap_ok, now_ns=message.time_ns)
    if not applied_level_is_met(message.named.get(REQUIRED_LEVEL_HEADER), message.rules):
        fast.end(batch)
        return [JetStreamError(ErrCode.REQUIRED_API_LEVEL)]
    message.drop_header(REQUIRED_LEVEL_HEADER)
    batch.touched_ns = message.time_ns
    if mark.op == FastOp.PING:
        return _ping(fast, batch, mark)
    replies: list[RowAnswer] = []
    if not _in_order(batch, mark, replies):
        return [*replies, _commit(fast, batch)]
    if mark.op == FastOp.COMMIT_WITHOUT:
        batch.last -= 1
        return [*replies, _commit(fast, batch)]
    if mark.seq == 1 and mark.op != FastOp.COMMIT:
        replies.append(_flow_ack(0, batch))
    return replies + _store(writer, fast, message, mark, batch, bounds=bounds)


def _refused_at_once(
    writer: MessageWriter, message: IncomingMessage, mark: FastSpan, bounds: Bounds | None
) -> JetStreamError | None:
    """Refusals that leave an open batch as it is."""
    refused = refusal_in_batch(writer.config, writer.store, message, bounds)
    if refused is not None:
        return refused
    if not writer.config.allow_batched:
        return JetStreamError(ErrCode.BATCH_PUBLISH_DISABLED)
    if mark.op == FastOp.MALFORMED:
        return JetStreamError(ErrCode.BATCH_PUBLISH_INVALID_PATTERN)
    if len(mark.id) > BATCH_ID_BYTES_MAX:
        return JetStreamError(ErrCode.BATCH_PUBLISH_INVALID_BATCH_ID)
    return None


def _ping(fast: FastBatches, batch: FastBatch, mark: FastSpan) -> list[RowAnswer]:
    """Answer with the present flow ack. A ping carries the highest sequence sent, so it also
    detects a gap at the end."""
    replies: list[RowAnswer] = []
    if mark.seq > batch.last:
        replies.append(_gap(batch.last + 1, mark.seq + 1))
        if not batch.gap_ok:
            return [*replies, _commit(fast, batch)]
        batch.last = mark.seq
        fast.flow_due(batch)
    return [*replies, _flow_ack(batch.acked, batch)]


def _in_order(batch: FastBatch, mark: FastSpan, replies: list[RowAnswer]) -> bool:
    """Count the message. False: it is out of order and ends the batch."""
    expected = batch.last + 1
    if mark.seq != expected:
        replies.append(_gap(expected, mark.seq))
        if mark.seq < expected or not batch.gap_ok:
            return False
    batch.last = mark.seq
    return True


def _store(
    writer: MessageWriter,
    fast: FastBatches,
    message: IncomingMessage,
    mark: FastSpan,
    batch: FastBatch,
    *,
    bounds: Bounds | None,
) -> list[RowAnswer]:
    commits = mark.op == FastOp.COMMIT
    answer = writer.publish(message, bounds)
    if isinstance(answer, JetStreamError):
        return _failed(fast, mark, batch, answer)
    duplicate = isinstance(answer, Duplicate)
    if isinstance(answer, Duplicate) and commits and not mark.gap_ok and batch.last == 1:
        fast.end(batch)
        return [Duplicate(answer.seq, batch=mark.id.decode(errors="replace"))]
    if not duplicate:
        batch.stored = writer.store.last_seq
    replies: list[RowAnswer] = []
    if (duplicate or not commits) and fast.flow_due(batch):
        replies.append(_flow_ack(batch.acked, batch))
    return [*replies, _commit(fast, batch)] if commits else replies


def _failed(
    fast: FastBatches, mark: FastSpan, batch: FastBatch, error: JetStreamError
) -> list[RowAnswer]:
    """A message was refused. If it is the first one, there is no batch; otherwise the batch ends,
    or continues if gaps are allowed."""
    if not mark.gap_ok and batch.last == 1:
        fast.end(batch)
        return [error]
    body = {"type": "err", "seq": mark.seq, "error": to_wire(error.body())}
    replies: list[RowAnswer] = [FastBatchReply(_encode(body).decode())]
    if mark.gap_ok and mark.op != FastOp.COMMIT:
        return replies
    batch.last -= 1
    return [*replies, _commit(fast, batch)]


def _commit(fast: FastBatches, batch: FastBatch) -> Stored:
    """End the batch with the messages that are stored."""
    fast.end(batch)
    return Stored(batch.stored, batch=batch.id.decode(errors="replace"), count=batch.last)


def _flow_ack(seq: int, batch: FastBatch) -> FastBatchReply:
    return FastBatchReply(f'{{"type":"ack","seq":{seq},"msgs":{batch.every}}}')


def _gap(expected: int, got: int) -> FastBatchReply:
    return FastBatchReply(f'{{"type":"gap","last_seq":{expected},"seq":{got}}}')
