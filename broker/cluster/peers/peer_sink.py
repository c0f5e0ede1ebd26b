"""Sends messages to the clients of another node: the sink of that node's subscriptions.

Owns: the messages that one loop turn has collected for the peer, and the frames that carry them.
May not touch: which subscriptions the peer has (interest.py puts them in the tree), Raft, streams.
A message crosses to a peer once, however many of its subscriptions match.
Spec: NATS clustering: messages are routed by interest, in order per link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from broker.cluster.peers.channels import CHANNEL_DELIVER, CHANNEL_ROUTED
from broker.cluster.peers.route_rules import RouteRules, allowed_rows
from broker.server.leaf.leaf_sink import LeafSink
from broker.server.routing.targeted_rows import TargetedRows, pieces
from broker.subjects import PublishingConnection, SinkKind, Subscription
from broker.wire import PubRun, encode_pub
from raft import NodeId

ROUTED_BYTES_MAX = 1 << 20  # a routed frame is sent once it holds this much

SubscriptionKey = tuple[str, bytes, bytes]  # account, subject, queue
Send = Callable[[NodeId, int, bytes], bool]

encode_frame = msgspec.msgpack.Encoder().encode


class RoutedFrame(msgspec.Struct, array_like=True):
    account: str
    plain: bool
    queues: list[bytes]
    protocol: bytes  # PUB and HPUB lines, as a client would send them
    origin: str = ""  # the cluster of the leaf node that they came from; older peers ignore it


class DeliverFrame(msgspec.Struct, array_like=True):
    """Messages for the subscriptions on `to`, which see another subject (JetStream)."""

    account: str
    to: bytes
    plain: bool
    queues: list[bytes]
    messages: list[tuple[bytes, bytes, bytes, bytes]]


class PeerSink:
    """Represents all subscriptions of one peer."""

    kind = SinkKind.ROUTE

    def __init__(self, peer: NodeId, send: Send, before_send: Callable[[], None]) -> None:
        self.peer = peer
        self.subscriptions: dict[SubscriptionKey, Subscription] = {}
        self._send = send
        self._before_send = before_send
        self._queued: list[TargetedRows] = []
        self._single: tuple[object, ...] | None = None  # what deliver() queued last
        self.rules: RouteRules | None = None
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_out = 0
        self.bytes_out = 0

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        if self.rules is not None and not self.rules.sends(subject):
            return False
        # The router passes one publish to several subscriptions as the same objects. Those share
        # one run, so that the message crosses the link once. If two equal publishes happen to share
        # a run, both are still delivered.
        single = (sub.account, subject, reply, headers, payload)
        known = self._single
        if known is not None and all(a is b for a, b in zip(known, single, strict=True)):
            run = self._queued[-1].run
        else:
            run = PubRun.of([(subject, reply, headers, payload)])
        self.deliver_run(sub, run, 0, 1, None)
        self._single = single
        return True

    def deliver_as(
        self, sub: Subscription, to: bytes, message: tuple[bytes, bytes, bytes, bytes]
    ) -> bool:
        """Deliver to the subscriptions on `to`, which see the message's own subject."""
        if self.rules is not None and not self.rules.sends(to):
            return False
        self.flush()
        queues = [sub.queue] if sub.queue else []
        frame = DeliverFrame(sub.account.name, to, not queues, queues, [message])
        return self._send(self.peer, CHANNEL_DELIVER, encode_frame(frame))

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
    ) -> bool:
        self._single = None
        if self.rules is None:
            self._queue(sub, run, start, stop, publisher)
        else:
            for first, end in allowed_rows(run, start, stop, self.rules.sends):
                self._queue(sub, run, first, end, publisher)
        return True

    def _queue(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
    ) -> None:
        last = self._queued[-1] if self._queued else None
        if last is None:
            asyncio.get_running_loop().call_soon(self.flush)
        elif last.add_target(run, start, stop, sub.queue):
            return
        origin = publisher.cluster if isinstance(publisher, LeafSink) else ""
        rows = TargetedRows(sub.account.name, run, start, stop, [sub.queue], origin)
        self._queued.append(rows)

    def flush(self) -> None:
        if not self._queued:
            return
        queued, self._queued = self._queued, []
        self._single = None
        self._before_send()
        parts: list[bytes] = []
        size = 0
        first: TargetedRows | None = None
        for piece in pieces(queued):
            if first is not None and (size >= ROUTED_BYTES_MAX or not _same_target(piece, first)):
                self._send_frame(first, parts)
                first, parts, size = None, [], 0
            first = first or piece
            part = encode_pub(piece.run, piece.start, piece.stop)
            parts.append(part)
            size += len(part)
            self.messages_out += piece.stop - piece.start
            self.bytes_out += piece.run.size(piece.start, piece.stop)
        if first is not None:
            self._send_frame(first, parts)

    def _send_frame(self, first: TargetedRows, parts: list[bytes]) -> None:
        """If the link's queue is full, the frame is dropped: core NATS is at-most-once."""
        queues = [queue for queue in first.targets if queue]
        plain, text = b"" in first.targets, b"".join(parts)
        frame = RoutedFrame(first.account, plain, queues, text, first.origin)
        self._send(self.peer, CHANNEL_ROUTED, encode_frame(frame))


def _same_target(one: TargetedRows, other: TargetedRows) -> bool:
    return (one.account, one.targets, one.origin) == (other.account, other.targets, other.origin)
