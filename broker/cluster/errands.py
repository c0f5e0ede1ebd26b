"""Pull requests, acks and flow control answers on their way to a stream's leader.

Owns: what one loop turn has collected for each leader.
May not touch: their meaning; the leader reads subjects and payloads itself.
They need no answer of their own: a lost ack leads to a redelivery, a lost pull request to the
client's own expiry. So they are sent once, to the leader known at that moment.
Spec: JetStream sheet 5.8, 5.9; DESIGN section 7."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from raft import NodeId

CHANNEL_ERRANDS = 23
TURN_MAX = 4096  # errands for one leader before a frame is sent in the middle of a turn
TURN_BYTES_MAX = 1 << 20  # and bytes for all leaders: an ack's payload may be as large as any

CHANNEL_ACKS = 24
AckErrand = tuple[int, bytes, list[int], list[int]]  # group, consumer, stream and consumer seqs
Errand = tuple[int, bytes, bytes, bytes, bytes]  # group, subject, reply, headers, payload

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Errand]).decode
_decode_acks = msgspec.msgpack.Decoder(list[AckErrand]).decode


@dataclass(slots=True)
class Errands:
    node: NodeId
    leader: Callable[[int], NodeId | None]
    send: Callable[[NodeId, int, bytes], bool]
    take: Callable[[Errand], None]
    take_acks: Callable[[AckErrand], None]
    before_send: Callable[[], None]
    dropped: int = 0
    _collected: dict[NodeId, list[Errand]] = field(default_factory=dict)
    _acks: dict[NodeId, list[AckErrand]] = field(default_factory=dict)
    _collected_bytes: int = 0
    _scheduled: bool = False

    def add(self, errand: Errand) -> bool:
        """False when no leader is known: the errand is dropped."""
        leader = self.leader(errand[0])
        if leader is None:
            self.dropped += 1
            return False
        if leader == self.node:
            self.take(errand)
            return True
        collected = self._collected.setdefault(leader, [])
        collected.append(errand)
        _, subject, reply, headers, payload = errand
        self._collected_bytes += len(subject) + len(reply) + len(headers) + len(payload)
        if len(collected) >= TURN_MAX or self._collected_bytes >= TURN_BYTES_MAX:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)
        return True

    def add_acks(self, acks: AckErrand) -> None:
        """Plain acks of one consumer; without a leader they are dropped and delivered again."""
        leader = self.leader(acks[0])
        if leader is None:
            self.dropped += len(acks[2])
        elif leader == self.node:
            self.take_acks(acks)
        else:
            self._acks.setdefault(leader, []).append(acks)
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        collected, self._collected = self._collected, {}
        self._collected_bytes = 0
        if collected:
            self.before_send()  # the leader must know the inbox a pull names before the pull
        for leader, errands in collected.items():
            if not self.send(leader, CHANNEL_ERRANDS, _encode(errands)):
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
