"""The leader's answer to a batch of publishes, from the result of applying it.

Owns: the answer to the publisher for each result; pure functions.
May not touch: the stream, sending the answer (publish/forwarding.py).
Spec: NATS JetStream publish acknowledgments (PubAck)."""

from __future__ import annotations

from msgspec.structs import replace

from broker.cluster.publish.publish_batch import STALE_SESSION, BatchAnswer
from broker.jetstream.api.responses import PubAck, encode_pub_ack, encode_pub_error
from broker.jetstream.errors import JetStreamError
from broker.jetstream.publish.sessions import (
    Duplicate,
    FastBatchReply,
    OutOfOrder,
    PublishResult,
    RowAnswer,
    Staged,
)
from raft import NodeId


def publish_answer(
    result: object, *, group: int, stream: str, domain: str
) -> tuple[NodeId, BatchAnswer]:
    """The node that the batch came from, and the answer to send to it."""
    if isinstance(result, PublishResult) and not result.exceptions:
        from_node = NodeId(result.from_node)
        return from_node, BatchAnswer(group, result.session, result.batch_no, result.first_seq, [])
    if isinstance(result, OutOfOrder):
        expected = result.expected or STALE_SESSION
        answer = BatchAnswer(group, result.session, result.batch_no, 0, [], expected=expected)
        return NodeId(result.from_node), answer
    assert isinstance(result, PublishResult)
    exceptions = [(row, _reply(what, stream, domain)) for row, what in result.exceptions]
    answer = BatchAnswer(group, result.session, result.batch_no, result.first_seq, exceptions)
    return NodeId(result.from_node), answer


def _reply(what: RowAnswer, stream: str, domain: str) -> bytes:
    if isinstance(what, Staged):
        return b""
    if isinstance(what, FastBatchReply):
        return what.text.encode()
    if isinstance(what, JetStreamError):
        return encode_pub_error(stream, what)
    ack = PubAck(stream=stream, seq=what.seq, domain=domain)
    if isinstance(what, Duplicate):
        count = 1 if what.batch else 0
        return encode_pub_ack(replace(ack, duplicate=True, batch=what.batch, count=count))
    return encode_pub_ack(replace(ack, val=what.val, batch=what.batch, count=what.count))
