"""Bugs of reads: leases, sleeping groups, plans of scans.

Owns: the replaced functions.
May not touch: anything while no bug is installed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from broker.cluster.api.leader_api import LeaderApi
from broker.cluster.api.message_gets import MessageGets
from broker.cluster.meta.assignments import Assignment
from broker.cluster.stream_requests import StreamLookup
from broker.jetstream.errors import ErrCode, JetStreamError
from chaos.sim.bugs.broker_bug import BrokerBug, Replacement
from raft.host.reads import GroupReads
from raft.host.ticker import TickPace
from raft.types import Role

_READERS: Final = ("resting readers",)
_OLD_LEADERS: Final = ("old leader",)
_REBUILT: Final = ("wipe", "disconnect", "isolate", "rough")

AreCurrent = Callable[[GroupReads, TickPace, float], bool]


def _read_while_asleep(original: AreCurrent) -> AreCurrent:
    def are_current(self: GroupReads, pace: TickPace, now: float) -> bool:
        core = self._core
        return (core.role is Role.LEADER and core.asleep) or original(self, pace, now)

    return are_current


def _read_after_lease(_: AreCurrent) -> AreCurrent:
    def are_current(self: GroupReads, _pace: TickPace, _now: float) -> bool:
        return self._core.lease_age() is not None

    return are_current


def _wait_for_nothing(_: object) -> Callable[..., Awaitable[None]]:
    async def wait_current(_self: LeaderApi, _replica: Any) -> None:
        pass

    return wait_current


def _follow_blindly(_: object) -> object:
    return staticmethod(lambda _stream, _index: True)


def _run_ahead(_: object) -> object:
    return staticmethod(lambda stream, index: stream.applied >= index)


def _trust_the_table(_: object) -> Callable[..., Awaitable[Assignment]]:
    async def find(self: StreamLookup, account: str, stream: str) -> Assignment:
        found = self.assignments.get(account, stream)
        if found is None:
            raise JetStreamError(ErrCode.STREAM_NOT_FOUND)
        return found

    return find


READ_BUGS: Final[dict[str, BrokerBug]] = {
    "a sleeping leader reads": BrokerBug(
        "a group that sleeps holds no lease: a read asks the others first (Raft thesis 6.4)",
        (Replacement(GroupReads, "are_current", _read_while_asleep),),
        found_by=16,
        workloads=_READERS,
        faults=_OLD_LEADERS,
    ),
    "a read after the lease": BrokerBug(
        "a leader reads without asking only while its lease holds (Raft thesis 6.4.1)",
        (Replacement(GroupReads, "are_current", _read_after_lease),),
        found_by=0,
        workloads=_READERS,
        faults=_OLD_LEADERS,
    ),
    "a read without a barrier": BrokerBug(
        "a leader without a lease asks the others whether it still leads (Raft thesis 6.4)",
        (Replacement(LeaderApi, "wait_current", _wait_for_nothing),),
        found_by=0,
        workloads=_READERS,
        faults=_OLD_LEADERS,
    ),
    "a follower reads without asking": BrokerBug(
        "a follower answers a get when it has applied what the leader has (Raft thesis 6.4)",
        (Replacement(MessageGets, "is_level", _follow_blindly),),
        found_by=24,
        workloads=_READERS,
    ),
    "a follower reads ahead of its leader": BrokerBug(
        "a follower that has applied more than its leader leaves the get to the leader",
        (Replacement(MessageGets, "is_level", _run_ahead),),
        found_by=62,
        workloads=_READERS,
        faults=("slow disk",),
    ),
    "a node that knows no streams denies them": BrokerBug(
        "a node says that there is no such stream only when its table of streams is current",
        (Replacement(StreamLookup, "find", _trust_the_table),),
        found_by=0,
        workloads=_READERS,
        faults=_REBUILT,
    ),
}
