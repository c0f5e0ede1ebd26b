"""Forwards batches of publishes to the stream's leader on another node, and the answers back.

Owns: the frames of both directions.
May not touch: how the leader processes a batch (replica/replica.py), how an answer is processed
(outbox_shell.py).
Spec: docs/decisions/0001-one-publish-through-all-layers.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct as Packing
from typing import Protocol

import msgspec

from broker.cluster.peers.channels import (
    CHANNEL_PUBLISH,
    CHANNEL_PUBLISH_FAST,
    CHANNEL_PUBLISHED,
)
from broker.cluster.publish.publish_batch import BatchAnswer, PublishBatch
from broker.jetstream.commands.publish_entry import encode_marks
from raft import NodeId

_HEAD = Packing("<QQQ")  # group, session, batch number
_FAST_HEAD = Packing("<QQQQ")  # the same, and the size of the marks
_encode = msgspec.msgpack.Encoder().encode
_answer = msgspec.msgpack.Decoder(BatchAnswer)

OnFrame = Callable[[NodeId, bytes], None]


class PeerLinks(Protocol):
    """The mesh, as far as publishing needs it."""

    def send(self, to: NodeId, channel: int, frame: bytes) -> bool: ...

    def register(self, channel: int, on_frame: OnFrame) -> None: ...


class PublishingReplica(Protocol):
    """A replica of the stream on this node."""

    def publish(
        self, from_node: NodeId, session: int, number: int, block: bytes, *, marks: bytes = b""
    ) -> None:
        """Propose the batch if this replica leads; otherwise drop it."""


@dataclass(slots=True)
class PublishForwarder:
    """Sends batches to the leader, on this node or another one, and hands the batches of other
    nodes to the local replica. A batch may be lost; the outbox resends it."""

    node: NodeId
    links: PeerLinks
    leader: Callable[[int], NodeId | None]
    replica: Callable[[int], PublishingReplica | None]  # the local one of a group

    def start(self) -> None:
        self.links.register(CHANNEL_PUBLISH, self._received)
        self.links.register(CHANNEL_PUBLISH_FAST, self._received_fast)

    def transmit(self, group: int, session: int, number: int, batch: PublishBatch) -> None:
        """Send a batch to the stream's leader, if one is known."""
        leader = self.leader(group)
        if leader is None:
            return
        marks = encode_marks(batch.fast) if batch.fast else b""
        if leader == self.node:
            replica = self.replica(group)
            if replica is not None:
                replica.publish(self.node, session, number, batch.block, marks=marks)
        elif marks:
            head = _FAST_HEAD.pack(group, session, number, len(marks))
            self.links.send(leader, CHANNEL_PUBLISH_FAST, b"".join((head, marks, batch.block)))
        else:
            head = _HEAD.pack(group, session, number)
            self.links.send(leader, CHANNEL_PUBLISH, head + batch.block)

    def _received(self, peer: NodeId, frame: bytes) -> None:
        group, session, number = _HEAD.unpack_from(frame)
        replica = self.replica(group)
        if replica is not None:
            replica.publish(peer, session, number, frame[_HEAD.size :])

    def _received_fast(self, peer: NodeId, frame: bytes) -> None:
        group, session, number, size = _FAST_HEAD.unpack_from(frame)
        replica = self.replica(group)
        if replica is not None:
            end = _FAST_HEAD.size + size
            marks = frame[_FAST_HEAD.size : end]
            replica.publish(peer, session, number, frame[end:], marks=marks)


@dataclass(slots=True)
class AnswerForwarder:
    """Returns a leader's answers to the node that the batch came from."""

    node: NodeId
    links: PeerLinks
    answered: Callable[[BatchAnswer], None]  # for the outboxes of this node

    def start(self) -> None:
        self.links.register(CHANNEL_PUBLISHED, self._received)

    def send(self, from_node: NodeId, answer: BatchAnswer) -> None:
        if from_node == self.node:
            self.answered(answer)
        else:
            self.links.send(from_node, CHANNEL_PUBLISHED, _encode(answer))

    def _received(self, _peer: NodeId, frame: bytes) -> None:
        self.answered(_answer.decode(frame))
