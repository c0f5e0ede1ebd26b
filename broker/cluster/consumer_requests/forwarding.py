"""Pull requests, acks and flow control answers on their way to a stream's leader.

Owns: what one loop turn has collected for each leader.
May not touch: their meaning; the leader reads subjects and payloads itself.
They need no answer of their own: a lost ack leads to a redelivery, a lost pull request to the
client's own expiry. So they are sent once, to the leader known at that moment, or held for a while
until there is one.
Spec: JetStream sheet 5.8, 5.9; DESIGN section 7."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from broker.cluster.consumer_requests.waiting_for_leader import WaitingForLeader
from broker.cluster.consumer_requests.waiting_pulls import Pulls
from broker.cluster.peers.channels import CHANNEL_ACKS, CHANNEL_CONSUMER_REQUESTS
from raft import NodeId

TURN_MAX = 4096  # errands for one leader before a frame is sent in the middle of a turn
TURN_BYTES_MAX = 1 << 20  # and bytes for all leaders: an ack's payload may be as large as any

HELD_OVERHEAD_BYTES = 300  # of what waits for a leader, beside its own bytes
HELD_ACK_BYTES = 100

ForwardedAcks = tuple[int, bytes, list[int], list[int]]  # group, consumer, stream and consumer seqs
ForwardedRequest = tuple[int, bytes, bytes, bytes, bytes]  # group, subject, reply, headers, payload

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[ForwardedRequest]).decode
_decode_acks = msgspec.msgpack.Decoder(list[ForwardedAcks]).decode


@dataclass(slots=True)
class RequestForwarder:
    node: NodeId
    leader: Callable[[int], NodeId | None]
    send: Callable[[NodeId, int, bytes], bool]
    take: Callable[[ForwardedRequest], None]
    take_acks: Callable[[ForwardedAcks], None]
    before_send: Callable[[], None]
    dropped: int = 0
    pulls: Pulls = field(default_factory=Pulls)
    _held: WaitingForLeader[ForwardedRequest] = field(default_factory=WaitingForLeader)
    _held_acks: WaitingForLeader[ForwardedAcks] = field(default_factory=WaitingForLeader)
    _collected: dict[NodeId, list[ForwardedRequest]] = field(default_factory=dict)
    _acks: dict[NodeId, list[ForwardedAcks]] = field(default_factory=dict)
    _collected_bytes: int = 0
    _scheduled: bool = False

    def add(self, errand: ForwardedRequest) -> bool:
        """False when no leader is known and there is no room to hold it: it is dropped."""
        leader = self.leader(errand[0])
        if leader is None:
            return self.hold(errand)
        if leader == self.node:
            self.take(errand)
            return True
        collected = self._collected.setdefault(leader, [])
        collected.append(errand)
        group, _, reply, _, payload = errand
        if reply and payload.startswith(b"{"):  # no ack's payload does
            self.pulls.sent(leader, group, reply, payload)
        self._collected_bytes += _size(errand)
        if len(collected) >= TURN_MAX or self._collected_bytes >= TURN_BYTES_MAX:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)
        return True

    def add_acks(self, acks: ForwardedAcks) -> None:
        """Plain acks of one consumer; what has to be dropped is delivered again."""
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

    # -- while nobody serves the group ----------------------------------------------------------

    def hold(self, errand: ForwardedRequest) -> bool:
        """Until `release`. False when there is no room."""
        held = self._held.keep(errand[0], errand, HELD_OVERHEAD_BYTES + _size(errand))
        self.dropped += not held
        return held

    def hold_acks(self, acks: ForwardedAcks) -> None:
        size = HELD_OVERHEAD_BYTES + HELD_ACK_BYTES * len(acks[2])
        if not self._held_acks.keep(acks[0], acks, size):
            self.dropped += len(acks[2])

    def release(self, group: int) -> None:
        """The group has a leader now."""
        for acks in self._held_acks.take(group):
            self.add_acks(acks)
        for errand in self._held.take(group):
            self.add(errand)

    def forget(self, group: int) -> None:
        """The stream is gone."""
        self._held_acks.take(group)
        self._held.take(group)

    # -- sending --------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        collected, self._collected = self._collected, {}
        self._collected_bytes = 0
        if collected:
            self.before_send()  # the leader must know the inbox a pull names before the pull
        for leader, errands in collected.items():
            if not self.send(leader, CHANNEL_CONSUMER_REQUESTS, _encode(errands)):
                self.dropped += len(errands)

        gathered, self._acks = self._acks, {}
        for leader, acks in gathered.items():
            if not self.send(leader, CHANNEL_ACKS, _encode(acks)):
                self.dropped += sum(len(ack[2]) for ack in acks)

    def received_acks(self, _peer: NodeId, frame: bytes) -> None:
        for acks in _decode_acks(frame):
            self.take_acks(acks)

    def received(self, _peer: NodeId, frame: bytes) -> None:
        for errand in _decode(frame):
            self.take(errand)


def _size(errand: ForwardedRequest) -> int:
    _, subject, reply, headers, payload = errand
    return len(subject) + len(reply) + len(headers) + len(payload)
