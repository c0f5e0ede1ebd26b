"""Forwards pull requests, acks and flow control replies to the leader of their stream.

Owns: the requests collected for each leader in one turn of the event loop, and those that wait for
a leader.
May not touch: the meaning of a request; the leader parses subjects and payloads.
Requests are not retried: a lost ack leads to a redelivery, and the client of a lost pull request is
told to repeat it. A request is sent once, to the leader known at that moment, or held for a while
until there is one.
Spec: NATS JetStream, consumers: acknowledgements and pull requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from broker.cluster.consumer_requests.waiting_for_leader import WaitingForLeader
from broker.cluster.consumer_requests.waiting_pulls import WaitingPulls
from broker.cluster.peers.channels import CHANNEL_ACKS, CHANNEL_CONSUMER_REQUESTS
from raft import NodeId

logger = logging.getLogger("jetraft.cluster")

TURN_MAX = 4096  # requests for one leader; then a frame is sent before the turn ends
TURN_BYTES_MAX = 1 << 20  # the same, for the bytes to all leaders: an ack may have a large payload

HELD_OVERHEAD_BYTES = 300  # estimate of what a held request takes besides its own bytes
HELD_ACK_BYTES = 100

ForwardedAcks = tuple[int, bytes, list[int], list[int]]  # group, consumer, stream and consumer seqs
ForwardedRequest = tuple[int, bytes, bytes, bytes, bytes]  # group, subject, reply, headers, payload

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[ForwardedRequest]).decode
_decode_acks = msgspec.msgpack.Decoder(list[ForwardedAcks]).decode


@dataclass(slots=True)
class RequestForwarder:
    """`take` and `take_acks` serve a request on this node; `lost` tells the client of one that no
    leader will serve; `before_send` is called before pull requests leave."""

    node: NodeId
    leader: Callable[[int], NodeId | None]
    send: Callable[[NodeId, int, bytes], bool]
    take: Callable[[ForwardedRequest], None]
    take_acks: Callable[[ForwardedAcks], None]
    lost: Callable[[ForwardedRequest], None]
    before_send: Callable[[], None]
    account_of: Callable[[int], str]  # the name of a group's account
    dropped: int = 0
    _pulls: WaitingPulls = field(default_factory=WaitingPulls)
    _held: WaitingForLeader[ForwardedRequest] = field(default_factory=WaitingForLeader)
    _held_acks: WaitingForLeader[ForwardedAcks] = field(default_factory=WaitingForLeader)
    _collected: dict[NodeId, list[ForwardedRequest]] = field(default_factory=dict)
    _acks: dict[NodeId, list[ForwardedAcks]] = field(default_factory=dict)
    _collected_bytes: int = 0
    _scheduled: bool = False

    def __post_init__(self) -> None:
        self._held.on_expired = self.lost

    def add(self, request: ForwardedRequest) -> bool:
        """False if it is dropped: no leader is known, and the queue for that case is full."""
        leader = self.leader(request[0])
        if leader is None:
            return self.hold(request)
        if leader == self.node:
            self.take(request)
            return True
        collected = self._collected.setdefault(leader, [])
        collected.append(request)
        if is_pull(request):
            group, _, reply, _, payload = request
            self._pulls.sent(leader, group, reply, payload, now_s=time.monotonic())
        self._collected_bytes += _size(request)
        if len(collected) >= TURN_MAX or self._collected_bytes >= TURN_BYTES_MAX:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)
        return True

    def add_acks(self, acks: ForwardedAcks) -> None:
        """Plain acks of one consumer. Messages whose acks are dropped are redelivered."""
        leader = self.leader(acks[0])
        if leader is None:
            self.hold_acks(acks)
        elif leader == self.node:
            self.take_acks(acks)
        else:
            self._acks.setdefault(leader, []).append(acks)
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._turn)

    # -- without a leader -----------------------------------------------------------------------

    def hold(self, request: ForwardedRequest) -> bool:
        """Queue it until `release`. False if the queue is full: then the client is told."""
        size = HELD_OVERHEAD_BYTES + _size(request)
        group, now_s = request[0], time.monotonic()
        held = self._held.keep(group, request, size, owner=self.account_of(group), now_s=now_s)
        if not held:
            self.dropped += 1
            self.lost(request)
        return held

    def hold_acks(self, acks: ForwardedAcks) -> None:
        size = HELD_OVERHEAD_BYTES + HELD_ACK_BYTES * len(acks[2])
        owner, now_s = self.account_of(acks[0]), time.monotonic()
        if not self._held_acks.keep(acks[0], acks, size, owner=owner, now_s=now_s):
            self.dropped += len(acks[2])

    def release(self, group: int) -> None:
        """The group has a leader now: send it the held requests."""
        now_s = time.monotonic()
        for acks in self._held_acks.take(group, now_s=now_s)[0]:
            self.add_acks(acks)
        alive, expired = self._held.take(group, now_s=now_s)
        for request in expired:
            self.lost(request)
        for request in alive:
            self.add(request)

    def link_restored(self) -> None:
        """A node is connected again: send the held requests for groups that it leads."""
        for group in dict.fromkeys(self._held_acks.groups() + self._held.groups()):
            if self.leader(group) is not None:
                self.release(group)

    def forget(self, group: int) -> None:
        """The stream was deleted."""
        now_s = time.monotonic()
        self._held_acks.take(group, now_s=now_s)
        self._held.take(group, now_s=now_s)

    def lost_pulls(self, node: NodeId) -> list[tuple[int, bytes]]:
        """The node is disconnected: group and reply subject of each pull request that waited
        there."""
        return self._pulls.lost(node, now_s=time.monotonic())

    # -- frames ---------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        collected, self._collected = self._collected, {}
        self._collected_bytes = 0
        if collected:
            self.before_send()  # announce interest first: the leader must know the client's inbox
        for leader, requests in collected.items():
            if not self.send(leader, CHANNEL_CONSUMER_REQUESTS, _encode(requests)):
                self.dropped += len(requests)
                for request in requests:
                    self.lost(request)

        gathered, self._acks = self._acks, {}
        for leader, acks in gathered.items():
            if not self.send(leader, CHANNEL_ACKS, _encode(acks)):
                self.dropped += sum(len(ack[2]) for ack in acks)

    def received(self, _peer: NodeId, frame: bytes) -> None:
        for request in _decode(frame):
            try:
                self.take(request)
            except Exception:
                logger.exception("a request from another node failed: %r", request[1])

    def received_acks(self, _peer: NodeId, frame: bytes) -> None:
        for acks in _decode_acks(frame):
            self.take_acks(acks)


def is_pull(request: ForwardedRequest) -> bool:
    """Whether this is a pull request, not an ack. No ack starts like the body of a pull."""
    _, _, reply, _, payload = request
    return bool(reply) and payload.startswith(b"{")


def _size(request: ForwardedRequest) -> int:
    _, subject, reply, headers, payload = request
    return len(subject) + len(reply) + len(headers) + len(payload)
