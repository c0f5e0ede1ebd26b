"""Bugs of consumers: acks, pull requests, redelivery.

Owns: the replaced functions.
May not touch: anything while no bug is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.cluster.api.leader_api import LeaderApi
from broker.cluster.replica.leadership import Leadership
from broker.cluster.replica.replica import Replica
from broker.jetstream.api.responses import encode_response
from broker.jetstream.api.subjects import ApiKind
from broker.jetstream.commands.stream_commands import CommandKind
from broker.jetstream.delivery.cursor import Cursor
from broker.jetstream.delivery.leader_time import LeaderTime
from chaos.sim.bugs.broker_bug import BrokerBug, Replacement
from raft.core.messages import Entry, EntryKind
from raft.host.applier import Applier
from raft.host.group import Group

PULL: Final = ("pull consumers",)


def _confirm_before_commit(original: Callable[..., None]) -> Callable[..., None]:
    def propose_all(self: Replica, proposed: Sequence[Any], confirms: Sequence[bytes]) -> None:
        if confirms and self.leading is not None:
            self.leading.confirm(confirms)
        original(self, proposed, [])

    return propose_all


def _show_uncommitted(_: object) -> object:
    async def consumer_info(self: LeaderApi, replica: Any, consumer: Any) -> bytes:
        return encode_response(
            ApiKind.CONSUMER_INFO, self.info.consumer(replica, consumer, shown=True)
        )

    return consumer_info


def _count_per_leader(original: Callable[..., None]) -> Callable[..., None]:
    def rebuild(self: Cursor, now: int) -> None:
        original(self, now)
        self.live.redelivered.clear()

    return rebuild


def _redeliver_at_once(original: Callable[..., None]) -> Callable[..., None]:
    """As if the deadlines of the old leader were compared with a clock that is ahead."""

    def rebuild(self: Cursor, now: int) -> None:
        original(self, now)
        for seq in self.live.pending:
            self.redelivery.schedule(seq, now)

    return rebuild


def _wait_by_cluster_time(_: object) -> object:
    def now(self: LeaderTime) -> int:
        return self._cluster_ns()

    return now


def _resume_at_once(_: object) -> object:
    def resume_leading(self: Replica, lost: Leadership) -> None:
        if self.leading is lost:
            self.leading = Leadership(self, self._services.delivery)

    return resume_leading


def _consumers_first(original: Callable[..., bool]) -> object:
    """Of the entries that wait to be applied, apply the creations of consumers first."""

    def work_off(self: Applier, group: Group) -> bool:
        normal = [entry for entry in group.backlog if entry.kind is EntryKind.NORMAL]
        if isinstance(group.machine, Replica) and normal:
            moved = iter(sorted((one.data for one in normal), key=_creates_no_consumer))
            swapped = {one.index: Entry(one.index, one.term, next(moved)) for one in normal}
            waiting = [swapped.get(entry.index, entry) for entry in group.backlog]
            group.backlog.clear()
            group.backlog.extend(waiting)
        return original(self, group)

    return work_off


def _creates_no_consumer(data: bytes) -> bool:
    return data[0] != CommandKind.CREATE_CONSUMER


CONSUMER_BUGS: Final[dict[str, BrokerBug]] = {
    "double ack before commit": BrokerBug(
        "a double ack is answered when its entry is committed",
        (Replacement(Replica, "propose_all", _confirm_before_commit),),
        found_by=107,
        workloads=PULL,
        faults=("isolate", "kill"),
    ),
    "consumer info before commit": BrokerBug(
        "consumer info shows no ack floor that the next leader might not know",
        (Replacement(LeaderApi, "_consumer_info", _show_uncommitted),),
        found_by=40,
        workloads=PULL,
        faults=("isolate", "halves", "slow disk", "kill", "pause"),
    ),
    "max_deliver counted per leader": BrokerBug(
        "a new leader continues to count deliveries",
        (Replacement(Cursor, "rebuild", _count_per_leader),),
        found_by=0,
        workloads=PULL,
    ),
    "redelivery by another clock": BrokerBug(
        "a new leader grants every pending message its whole ack wait",
        (Replacement(Cursor, "rebuild", _redeliver_at_once),),
        found_by=0,
        workloads=PULL,
    ),
    "waits by the time of the cluster": BrokerBug(
        "a step of the time shortens no wait",
        (Replacement(LeaderTime, "now", _wait_by_cluster_time),),
        found_by=170,
        workloads=("push consumers", *PULL),
        faults=("clock jump", "kill", "isolate"),
    ),
    "engines restarted early": BrokerBug(
        "engines whose commands were refused start again when those before them are applied",
        (Replacement(Replica, "_resume_leading", _resume_at_once),),
        found_by=228,
        workloads=(*PULL, "flood"),
        faults=("slow disk", "slow link", "full disk"),
    ),
    "a consumer applied before its stream": BrokerBug(
        "a consumer begins after all that its stream had stored when it was created",
        (Replacement(Applier, "_work_off", _consumers_first),),
        found_by=0,
        workloads=("key-value watch",),
    ),
}
