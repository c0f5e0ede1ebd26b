"""What a host reports about itself, as frozen snapshots.

Owns: HostStatistics and HostMetrics, and which part of the host provides which number.
May not touch: anything; it only reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raft.host.applier import Applier
from raft.host.disk_recovery import DiskRecovery
from raft.host.group import Group
from raft.host.inbound import Rejections
from raft.host.latency import Latency
from raft.host.quiescence import Quiescence
from raft.host.round_loop import RoundLoop
from raft.host.snapshots import SnapshotExchange
from raft.host.ticker import Ticker
from raft.store.log_store import LogStore
from raft.types import GroupId, NodeId, Role, Term


@dataclass(frozen=True, slots=True)
class HostStatistics:
    groups: int
    leading: int
    stopped: dict[GroupId, str]
    healthy: bool
    failure: str | None
    rounds: int
    flushes: int
    written_bytes: int
    applied_entries: int
    refused_writes: int
    late_ticks: int
    loop_lag_seconds_last: float
    loop_lag_seconds_max: float
    recoveries: int  # of the store after a failure of the disk
    snapshots_sent: int
    snapshots_resumed: int  # times that a transfer resumed after a lost connection
    snapshots_installed: int
    awake: int  # groups that get ticks; the others sleep
    recovering: int  # members that lost their log and have not caught up
    waiting_groups: int  # have something to do in the next round
    waiting_batches: int  # wait to be written
    waiting_promises: int  # wait for a flush
    waiting_bytes: int  # proposed and not applied
    refused_messages: int  # of nodes that are not members of the group
    stray_messages: int  # for groups that are not on this node
    refused_entries: int  # larger than the limit
    flush_latency: Latency
    commit_latency: Latency  # from proposal to apply, one proposal at a time per group


@dataclass(frozen=True, slots=True)
class HostMetrics:
    """HostStatistics, and term and leader of every group."""

    statistics: HostStatistics
    terms: dict[GroupId, Term]
    leaders: dict[GroupId, NodeId | None]


@dataclass(frozen=True, slots=True)
class HostObserver:
    """The parts of a host that keep the numbers."""

    groups: Mapping[GroupId, Group]
    store: LogStore
    rounds: RoundLoop
    applier: Applier
    ticker: Ticker
    disk: DiskRecovery
    snapshots: SnapshotExchange
    quiescence: Quiescence[Group]
    rejections: Rejections

    def statistics(self) -> HostStatistics:
        """Costs a walk over all groups."""
        trouble, store = self.disk.trouble(), self.store.statistics()
        held = self.groups.values()
        flushes = self.rounds.flush_latency.snapshot()
        waiting_groups, waiting_batches, waiting_promises = self.rounds.depths()
        return HostStatistics(
            groups=len(held),
            leading=sum(group.core.role is Role.LEADER for group in held),
            stopped={group.id: group.stopped for group in held if group.stopped is not None},
            healthy=trouble is None,
            failure=trouble,
            rounds=self.rounds.count,
            flushes=flushes.count,
            written_bytes=store.written_bytes,
            applied_entries=self.applier.applied_entries,
            refused_writes=store.refusals,
            late_ticks=self.ticker.late,
            loop_lag_seconds_last=self.ticker.lag_last,
            loop_lag_seconds_max=self.ticker.lag_max,
            recoveries=self.disk.count,
            snapshots_sent=self.snapshots.sent,
            snapshots_resumed=self.snapshots.resumed,
            snapshots_installed=self.snapshots.installed,
            awake=len(self.quiescence.awake),
            recovering=sum(group.core.recovering for group in held),
            waiting_groups=waiting_groups,
            waiting_batches=waiting_batches,
            waiting_promises=waiting_promises,
            waiting_bytes=sum(group.waiting_bytes for group in held),
            refused_messages=self.rejections.refused_messages,
            stray_messages=self.rejections.stray_messages,
            refused_entries=self.rejections.refused_entries,
            flush_latency=flushes,
            commit_latency=self.applier.commit_latency.snapshot(),
        )

    def metrics(self) -> HostMetrics:
        groups = self.groups.values()
        return HostMetrics(
            self.statistics(),
            terms={group.id: group.core.term for group in groups},
            leaders={group.id: group.core.leader for group in groups},
        )
