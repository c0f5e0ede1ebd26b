"""Promises about the state of consumers, checked whenever a replica has applied entries.

Owns: the ack floors that were seen, by the index at which they were applied.
May not touch: replicas; a function of the host is wrapped during a run, without changing it.
Spec: broker/jetstream/consumer/ack_floor.py states the invariants. A floor falls only by a reset,
which begins another epoch; the observer keeps floors across crashes and changes of leader."""
# ruff: noqa: SLF001 - only private fields show whether an engine is idle

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from broker.cluster.replica.leadership import Leadership
from broker.jetstream.consumer.ack_floor import AckFloor
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.delivery.engine import Delivery
from broker.jetstream.stream.stream import Stream
from chaos.sim.promises.seen_replica import SeenReplica
from chaos.sim.world.replacement import Replacement
from raft.core.messages import Entry
from raft.host.applier import Applier
from raft.host.group import Group
from raft.types import GroupId

Floor = tuple[int, int]  # consumer sequence, stream sequence


class AppliedReplica(SeenReplica, Protocol):
    """broker.cluster.replica.replica.Replica, as far as it is read here."""

    @property
    def name(self) -> str: ...
    @property
    def refused(self) -> Leadership | None: ...
    @property
    def _proposed(self) -> int: ...


class ConsumerStates:
    """`broken` gets the facts."""

    def __init__(self, broken: Callable[[str], None]) -> None:
        self._broken = broken
        # By group, name and epoch: the newest index and the floor that it left.
        self._newest: dict[tuple[GroupId, str, int], tuple[int, Floor]] = {}

    def replacements(self) -> tuple[Replacement, ...]:
        return (Replacement(Applier, "_apply_entries", self._around_entries),)

    def _around_entries(self, original: Any) -> Any:
        def apply_entries(applier: Applier, group: Group, committed: list[Entry]) -> None:
            original(applier, group, committed)
            replica: Any = group.machine
            if not isinstance(getattr(replica, "stream", None), Stream):
                return
            for consumer in replica.stream.consumers.values():
                fault = inconsistent(consumer.state) or self._went_back(replica, consumer)
                if fault:
                    self._broken(f"{replica.name} > {consumer.name}: {fault}")
            if apart := _differs_at_rest(replica):
                self._broken(f"{replica.name} > {apart}")

        return apply_entries

    def _went_back(self, replica: AppliedReplica, consumer: Consumer) -> str:
        """Whether a floor went back. A replica that lags must not have a higher floor than the
        newest one."""
        key = (replica.group, consumer.name, consumer.epoch)
        index, floor = replica.stream.applied, consumer.state.floor
        newest = self._newest.get(key)
        if newest is None or index >= newest[0]:
            self._newest[key] = (index, floor)
        if newest is None:
            return ""
        low, high = (newest[1], floor) if index >= newest[0] else (floor, newest[1])
        if low[0] <= high[0] and low[1] <= high[1]:
            return ""
        return f"the ack floor {newest[1]} of index {newest[0]} is {floor} at index {index}"


def inconsistent(state: AckFloor) -> str:
    """Which invariant does not hold; empty: all do."""
    if state.floor_stream_seq > state.stream_seq or state.floor_consumer_seq > state.consumer_seq:
        return f"the floor {state.floor} is above ({state.consumer_seq}, {state.stream_seq})"
    lowest = min(state.pending, default=0)
    if lowest and lowest <= state.floor_stream_seq:
        return f"{lowest} is pending below the floor {state.floor_stream_seq}"
    if state.pending and max(state.pending) > state.stream_seq:
        return f"{max(state.pending)} is pending above the last delivery {state.stream_seq}"
    if both := state.exhausted & state.pending.keys():
        return f"{sorted(both)} are both pending and given up"
    return ""


def _unlike(engine: Delivery) -> str:
    """How the live state at the leader differs from the replicated one. Its floor may be lower: an
    ack that replicas apply after the next delivery raises their floor to just below that one. It
    may not be higher: clients see it, and the next leader would show a lower one."""
    live, replicated = engine._cursor.live, engine.consumer.state
    (numbers, *sets), (others, *other_sets) = live.pack(), replicated.pack()
    lower = live.floor[0] <= replicated.floor[0] and live.floor[1] <= replicated.floor[1]
    if lower and numbers[:2] == others[:2] and sets == other_sets:
        return ""
    name = engine.consumer.name
    return f"{name}: the leader has {live.pack()}, the replicas {replicated.pack()}"


def live_differs(replicas: Mapping[str, SeenReplica]) -> str:
    """When all engines are idle: a consumer whose live state differs from the replicated one.
    Without acks the position is replicated only now and then."""
    leading = next((one.leading for one in replicas.values() if one.leading is not None), None)
    if leading is None or leading.closed:
        return ""
    tracked = (engine for engine in leading.engines.values() if engine._cursor.tracked)
    return next(filter(None, map(_unlike, tracked)), "")


def _differs_at_rest(replica: AppliedReplica) -> str:
    """Like `live_differs`, for engines that have nothing to replicate and nothing in flight."""
    leading = replica.leading
    if leading is None or leading.closed or leading is replica.refused:
        return ""
    if replica.stream.applied < replica._proposed:
        return ""
    return next(
        filter(None, (_unlike(one) for one in leading.engines.values() if _rests(leading, one))), ""
    )


def _rests(leading: Leadership, engine: Delivery) -> bool:
    acks, progress = engine._acks, engine._cursor.progress
    under_way = (
        engine in leading._dirty
        or acks._arrived
        or acks._arrived_up_to[0]
        or acks._acked
        or acks._up_to[0]
        or acks._exhausted
        or acks._floor_differs
        or progress._messages
    )
    return engine._cursor.tracked and not under_way
