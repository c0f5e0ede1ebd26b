"""Bugs of ack floors, of removals that overtake acks, and of stored consumer state.

Owns: the replaced functions.
May not touch: anything while no bug is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.cluster.consumer_requests.waiting_pulls import WaitingPulls
from broker.cluster.peers.interest import Interest
from broker.jetstream.consumer.ack_floor import AckFloor
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.delivery.ack_collector import AckCollector
from broker.jetstream.delivery.max_ack_pending import MaxAckPending
from chaos.sim.bugs.broker_bug import BrokerBug, Replacement

PULL: Final = ("pull consumers",)
PURGED: Final = ("purged consumers",)


def _floor_of_the_last_ack(original: Callable[..., list[int]]) -> object:
    def ack_up_to(self: AckFloor, stream_seq: int, *, consumer_seq: int) -> list[int]:
        settled = original(self, stream_seq, consumer_seq=consumer_seq)
        self.floor_stream_seq = min(stream_seq, self.stream_seq)
        self.floor_consumer_seq = min(consumer_seq, self.consumer_seq)
        return settled

    return ack_up_to


def _take_late_ack(original: Callable[..., None]) -> object:
    """An ack all below the floor is applied as well."""

    def settle(self: AckCollector, now: int) -> None:
        stream_seq, consumer_seq = self._arrived_up_to
        original(self, now)
        live = self._cursor.live
        if 0 < stream_seq < live.floor_stream_seq:
            live.ack_up_to(stream_seq, consumer_seq=consumer_seq)
            self._up_to = (stream_seq, consumer_seq)

    return settle


def _nothing(_: object) -> object:
    def nothing(*_: Any) -> None:
        """Does nothing."""

    return nothing


def _pass_over_pending(original: Callable[..., None]) -> object:
    def pass_over(self: AckFloor, stream_seq: int) -> None:
        original(self, stream_seq)
        self._floor_to_delivered()

    return pass_over


def _tell_nobody(_: object) -> object:
    def lost(self: WaitingPulls, node: Any, *, now_s: float) -> list[tuple[int, bytes]]:
        self._waiting.pop(node, None)
        return []

    return lost


def _decode_without_state(original: Any) -> object:
    def decode(cls: type[Consumer], stream: Any, blob: bytes) -> Consumer:
        consumer: Consumer = original.__func__(cls, stream, blob)
        consumer.state = AckFloor(consumer.state.floor_stream_seq)
        return consumer

    return classmethod(decode)


def _hear_no_question(original: Callable[..., None]) -> object:
    def received_interest(self: Interest, peer: Any, frame: bytes) -> None:
        self.on_asked.clear()
        original(self, peer, frame)

    return received_interest


def _ignore_delay(original: Callable[..., None]) -> object:
    def nak(self: AckCollector, seq: int, _delay_ns: int | None, now: int) -> None:
        original(self, seq, None, now)

    return nak


def _unlimited(_: object) -> object:
    def room(_self: MaxAckPending, _pending: int) -> int:
        return 1 << 20

    return room


ACK_BUGS: Final[dict[str, BrokerBug]] = {
    "ack floor moved back": BrokerBug(
        "an ack floor never falls: a late ack all below it changes nothing",
        (
            Replacement(AckFloor, "ack_up_to", _floor_of_the_last_ack),
            Replacement(AckCollector, "settle", _take_late_ack),
        ),
        found_by=9,
        workloads=PULL,
    ),
    "purge leaves the ack-all floor behind": BrokerBug(
        "a floor of the leader that a purge has overtaken is replicated",
        (Replacement(AckCollector, "align_floor", _nothing),),
        found_by=0,
        workloads=PURGED,
        faults=("slow disk", "slow link"),
    ),
    "purge overtakes an ack": BrokerBug(
        "a purge moves no floor above a message that waits for its ack",
        (Replacement(AckFloor, "pass_over", _pass_over_pending),),
        found_by=1,
        workloads=PURGED,
    ),
    "purge overtakes a delivery": BrokerBug(
        "a delivery that follows the removal of its message leaves nothing pending",
        (Replacement(Consumer, "_drop_missing", _nothing),),
        found_by=9,
        workloads=PURGED,
    ),
    "lost pull request is not told": BrokerBug(
        "the client of a pull request that is lost with its leader is told",
        (Replacement(WaitingPulls, "lost", _tell_nobody),),
        found_by=34,
        workloads=PULL,
        faults=("kill", "isolate"),
    ),
    "pull request over a one-way link": BrokerBug(
        "the client of a pull request that its leader dropped, not knowing the inbox, is told",
        (Replacement(Interest, "received_interest", _hear_no_question),),
        found_by=79,
        workloads=PULL,
        faults=("isolate", "cut"),
    ),
    "snapshot without delivered state": BrokerBug(
        "snapshots and checkpoints carry what is delivered and acked",
        (Replacement(Consumer, "decode", _decode_without_state),),
        found_by=0,
        workloads=PULL,
    ),
    "nak delay ignored": BrokerBug(
        "a message that is refused with a delay is not delivered before",
        (Replacement(AckCollector, "_nak", _ignore_delay),),
        found_by=2,
        workloads=PULL,
    ),
    "max_ack_pending ignored": BrokerBug(
        "no more than max_ack_pending messages wait for acks",
        (Replacement(MaxAckPending, "room", _unlimited),),
        found_by=3,
        workloads=PULL,
    ),
}
