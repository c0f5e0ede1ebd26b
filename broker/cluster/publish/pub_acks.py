"""Encodes PubAcks, the answers to publishes, and delivers them to the publishers.

Owns: the text of a PubAck, and its encoding in bulk for the common case of one inbox subscription.
May not touch: which batch is answered, and when (outbox_core.py).
Spec: NATS JetStream, publish acknowledgement; NATS client protocol, 503 "no responders"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from broker.accounts import Account
from broker.cluster.publish.publish_batch import BatchAnswer, PublishBatch
from broker.store.block.codec import Block
from broker.subjects import SinkKind, Subscription
from broker.wire import ReplyColumn, encode_pub_acks

if TYPE_CHECKING:
    from broker.server.client.client_sink import ClientSink


AT_ONCE_MAX: Final = 128  # connections that are written to immediately; the others in their turns


class ReplyRouter(Protocol):
    """The router, as far as answers need it."""

    def publish(
        self, account: Account, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> int: ...


class PubAcks:
    """The answers of one stream. `extra` follows the sequence in every ack."""

    def __init__(
        self, stream: bytes, account: Account, router: ReplyRouter, *, extra: bytes
    ) -> None:
        self._stream = stream
        self._account = account
        self._router = router
        self._extra = extra
        self._fixed_bytes = len(self._ack(0)) - 1  # of an ack, without its sequence

    def acknowledge(self, batch: PublishBatch, answer: BatchAnswer) -> None:
        if answer.exceptions or batch.fast:
            self._acknowledge_each(batch, answer)
            return
        for position, (start, stop, has_replies) in enumerate(batch.spans):
            if not has_replies:
                continue
            target = self._bulk_target(batch.replies, start, stop)
            if target is None:
                for row in range(start, stop):
                    reply = batch.replies.get(row)
                    if reply:
                        self._publish(reply, b"", self._ack(answer.first_seq + row))
                continue
            acks = encode_pub_acks(
                batch.replies, start, stop, target.sid, self._stream,
                answer.first_seq + start, self._extra,
            )  # fmt: skip
            sink: ClientSink = target.sink  # type: ignore[assignment]  # cast() is a call
            count = stop - start
            first = answer.first_seq + start
            digits = len(str(first)) if count == 1 else _digits(first, count)
            size = count * self._fixed_bytes + digits
            at_once = position < AT_ONCE_MAX
            deliver = sink.deliver_answers if at_once else sink.deliver_encoded
            deliver(target, acks, messages=count, payload_bytes=size)

    def no_responders(self, batch: PublishBatch) -> None:
        """The stream was deleted: answer as the server would answer a publish now."""
        block = Block(batch.block, verify=False)
        for start, stop, has_replies in batch.spans:
            for row in range(start, stop) if has_replies else ():
                reply = batch.replies.get(row)
                if reply:
                    status = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % block.subject(row)
                    self._publish(reply, status, b"")

    def _acknowledge_each(self, batch: PublishBatch, answer: BatchAnswer) -> None:
        """Publish the leader's replies to single rows. The other rows are acked with consecutive
        sequences; rows of fast batches get only the leader's replies."""
        replied: dict[int, list[bytes]] = {}
        for row, body in answer.exceptions:
            replied.setdefault(row, []).append(body)
        fast = {row for span in batch.fast for row in range(span.row, span.row + span.count)}
        seq = answer.first_seq
        for row in replied if len(fast) == batch.rows else range(batch.rows):
            bodies = replied.get(row)
            if bodies is None:
                if row in fast:
                    continue
                bodies = [self._ack(seq)]
                seq += 1
            reply = batch.replies.get(row)
            if reply:
                for body in bodies:
                    self._publish(reply, b"", body)

    def _bulk_target(self, replies: ReplyColumn, start: int, stop: int) -> Subscription | None:
        """The local subscription that gets all these replies, if there is exactly one."""
        prefix = replies.prefix(start, stop)
        match = self._account.subs.match_prefix(prefix) if prefix else None
        if match is None or match.queues or len(match.plain) != 1:
            return None
        target = match.plain[0]
        if target.max_msgs or target.sink.kind is not SinkKind.CLIENT:
            return None
        # A watchful client (permissions, tracing) must be given each message, by deliver().
        sink: ClientSink = target.sink  # type: ignore[assignment]
        return None if sink.watchful else target

    def _ack(self, seq: int) -> bytes:
        return b'{"stream":"%b","seq":%d%b}' % (self._stream, seq, self._extra)

    def _publish(self, reply: bytes, headers: bytes, body: bytes) -> None:
        self._router.publish(self._account, reply, b"", headers, body)


def _digits(first: int, count: int) -> int:
    """Digits of `count` consecutive numbers, starting with `first`."""
    width = len(str(first))
    same = 10**width - first  # as many have this width
    return width * count if count <= same else width * same + _digits(10**width, count - same)
