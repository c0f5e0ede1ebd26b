"""Sends messages to the clients of another node: the sink of that node's subscriptions.

Owns: the messages that one loop turn has collected for the peer, and the frames that carry them.
May not touch: which subscriptions the peer has (interest.py puts them in the tree), Raft, streams.
A message crosses to a peer once, however many of its subscriptions match.
Spec: NATS clustering: messages are routed by interest, in order per link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from broker.cluster.peers.channels import CHANNEL_ROUTED
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


@dataclass(slots=True)
class _Queued:
    """Rows of a run for a peer, and all subscriptions there that should get them."""

    account: str
    run: PubRun
    start: int
    stop: int
    targets: list[bytes]  # queue groups; b"" means the plain subscriptions


class PeerSink:
    """Represents all subscriptions of one peer."""

    kind = SinkKind.ROUTE

    def __init__(self, peer: NodeId, send: Send, before_send: Callable[[], None]) -> None:
        self.peer = peer
        self.subscriptions: dict[SubscriptionKey, Subscription] = {}
        self._send = send
        self._before_send = before_send
        self._queued: list[_Queued] = []
        self._single: tuple[object, ...] | None = None  # what deliver() queued last
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_out = 0
        self.bytes_out = 0

    def deliver(
        self, sub: Subscription, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> bool:
        # The router passes one publish to several subscriptions as the same objects. These share
        # a run, so that the message crosses once. If two equal publishes come to share a run,
        # both are still delivered.
        single = (sub.account, subject, reply, headers, payload)
        known = self._single
        if known is not None and all(a is b for a, b in zip(known, single, strict=True)):
            run = self._queued[-1].run
        else:
            run = PubRun.of([(subject, reply, headers, payload)])
        self.deliver_run(sub, run, 0, 1, None)
        self._single = single
        return True

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
    ) -> bool:
        self._single = None
        last = self._queued[-1] if self._queued else None
        if last is None:
            asyncio.get_running_loop().call_soon(self.flush)
        elif (
            last.run is run
            and last.start == start
            and last.stop == stop
            and sub.queue not in last.targets
        ):
            last.targets.append(sub.queue)
            return True
        self._queued.append(_Queued(sub.account.name, run, start, stop, [sub.queue]))
        return True

    def flush(self) -> None:
        if not self._queued:
            return
        queued, self._queued = self._queued, []
        self._single = None
        self._before_send()
        parts: list[bytes] = []
        size = 0
        first: _Queued | None = None
        for piece in _pieces(queued):
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

    def _send_frame(self, first: _Queued, parts: list[bytes]) -> None:
        """If the link's queue is full the frame is dropped: plain NATS promises at most once."""
        queues = [queue for queue in first.targets if queue]
        frame = RoutedFrame(first.account, b"" in first.targets, queues, b"".join(parts))
        self._send(self.peer, CHANNEL_ROUTED, encode_frame(frame))


def _pieces(queued: list[_Queued]) -> Iterator[_Queued]:
    """Cut the queue so that every row of a run is in one piece, with all its targets."""
    at = 0
    while at < len(queued):
        end = at + 1
        while end < len(queued) and queued[end].run is queued[at].run:
            end += 1
        yield from queued[at:end] if end == at + 1 else _cut(queued[at:end])
        at = end


def _cut(queued: list[_Queued]) -> Iterator[_Queued]:
    """A queue group may get slices of a run that the plain subscriptions get whole. Cut at every
    edge, so that a row with several targets crosses once and names them all."""
    account, run = queued[0].account, queued[0].run
    edges = sorted({edge for item in queued for edge in (item.start, item.stop)})
    begins: dict[int, list[_Queued]] = {}
    for item in queued:
        begins.setdefault(item.start, []).append(item)
    active: list[_Queued] = []
    for start, stop in pairwise(edges):
        active = [item for item in active if item.stop > start] + begins.get(start, [])
        targets = [queue for item in active for queue in item.targets]
        # A target that is named twice for a row gets the row twice: it was published twice.
        while targets:
            once = list(dict.fromkeys(targets))
            yield _Queued(account, run, start, stop, once)
            for queue in once:
                targets.remove(queue)


def _same_target(one: _Queued, other: _Queued) -> bool:
    return one.account == other.account and one.targets == other.targets
