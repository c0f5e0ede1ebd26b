"""Batches of publishes between the nodes: from an outbox to the stream's leader, and answers back.

Owns: the frames of both directions.
May not touch: what a batch leads to (replica.py), what an answer leads to (outbox.py).
Spec: DESIGN section 4."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct as Packing
from typing import TYPE_CHECKING

import msgspec

from broker.cluster.publish.outbox import Outbox, PublishBatch, Published
from broker.jetstream.commands.publish_entry import encode_marks
from broker.jetstream.config.stream_config import Retention, Storage
from broker.jetstream.config.transforms import mapping_of
from raft import NodeId

if TYPE_CHECKING:
    from broker.cluster.node import JetStreamNode

CHANNEL_PUBLISH = 20
CHANNEL_PUBLISHED = 21
CHANNEL_PUBLISH_FAST = 25  # a publish with the marks of fast batches

_HEAD = Packing("<QQQ")  # group, session, number
_FAST_HEAD = Packing("<QQQQ")  # the same, and the size of the marks
_encode = msgspec.msgpack.Encoder().encode
_published = msgspec.msgpack.Decoder(Published)


@dataclass(slots=True)
class PublishForwarder:
    node: JetStreamNode

    def start(self) -> None:
        mesh = self.node.mesh
        mesh.register(CHANNEL_PUBLISH, self._received)
        mesh.register(CHANNEL_PUBLISH_FAST, self._received_fast)
        mesh.register(CHANNEL_PUBLISHED, self._received_answer)

    def transmit(self, outbox: Outbox, batch: PublishBatch) -> None:
        """Send a batch to the stream's leader, if one is known."""
        node, names = self.node, (outbox.group, outbox.session, batch.number)
        leader = node.leader(outbox.group)
        marks = encode_marks(batch.fast) if batch.fast else b""
        if leader == node.node:
            replica = node.replicas[outbox.group]
            replica.publish(node.node, *names[1:], batch.block, marks=marks)
        elif leader is not None and marks:
            head = _FAST_HEAD.pack(*names, len(marks))
            node.mesh.send(leader, CHANNEL_PUBLISH_FAST, b"".join((head, marks, batch.block)))
        elif leader is not None:
            node.mesh.send(leader, CHANNEL_PUBLISH, _HEAD.pack(*names) + batch.block)

    def no_room(self, group: int) -> bool:
        """Whether a publish would meet our own disk, full or failed, and nobody else's."""
        node = self.node
        if not node.store.full and node.host.failure is None:
            return False
        replica = node.replicas.get(group)
        if replica is None or replica.stream.config.storage is Storage.MEMORY:
            return False
        return replica.assignment.holders == {node.node} or node.leader(group) == node.node

    def stored_as(self, account: str, stream: str, subject: bytes) -> tuple[bytes, bool]:
        """The subject the stream keeps a message under, and whether it keeps none because no
        consumer wants it. Consumers are known where a replica is; elsewhere somebody may."""
        assignment = self.node.meta.get(account, stream)
        if assignment is None:
            return subject, False
        mapping = mapping_of(assignment.config.subject_transform)
        subject = (mapping and mapping(subject)) or subject
        replica = self.node.replicas.get(assignment.group)
        if replica is None or assignment.config.retention is not Retention.INTEREST:
            return subject, False
        return subject, not any(one.wants(subject) for one in replica.stream.consumers.values())

    def _received(self, peer: NodeId, frame: bytes) -> None:
        group, session, number = _HEAD.unpack_from(frame)
        replica = self.node.replicas.get(group)
        if replica is not None:
            replica.publish(peer, session, number, frame[_HEAD.size :])

    def _received_fast(self, peer: NodeId, frame: bytes) -> None:
        group, session, number, size = _FAST_HEAD.unpack_from(frame)
        replica = self.node.replicas.get(group)
        if replica is not None:
            end = _FAST_HEAD.size + size
            marks = frame[_FAST_HEAD.size : end]
            replica.publish(peer, session, number, frame[end:], marks=marks)

    def answer(self, origin: NodeId, answer: Published) -> None:
        """A leader's answer to a batch: to our own outbox, or to the node it came from."""
        if origin != self.node.node:
            self.node.mesh.send(origin, CHANNEL_PUBLISHED, _encode(answer))
            return
        outbox = self.node.outboxes.get(answer.group)
        if outbox is not None:
            outbox.answered(answer)

    def _received_answer(self, _peer: NodeId, frame: bytes) -> None:
        self.answer(self.node.node, _published.decode(frame))
