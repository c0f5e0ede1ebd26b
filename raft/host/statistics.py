"""Looking at a host from the side: its numbers, gathered from the parts that keep them.

Owns: which part is asked for which number.
May not touch: anything; it reads. What the numbers mean stands in metrics.py.
Spec: DESIGN section 6."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raft.host.disk_recovery import Recovery
from raft.host.group import Group
from raft.host.metrics import HostMetrics, HostStatistics
from raft.host.peer_errors import PeerErrors
from raft.host.quiescence import Vigil
from raft.host.rounds import Rounds
from raft.host.snapshots import SnapshotExchange
from raft.host.ticker import Ticker
from raft.store.log_store import LogStore
from raft.types import GroupId, Role


@dataclass(frozen=True, slots=True)
class Watch:
    groups: Mapping[GroupId, Group]
    store: LogStore
    rounds: Rounds
    ticker: Ticker
    recovery: Recovery
    exchange: SnapshotExchange
    vigil: Vigil
    complaints: PeerErrors

    def statistics(self, trouble: str | None) -> HostStatistics:
        """`trouble` is why the node can promise nothing, if so. Costs a walk over all groups."""
        rounds, store = self.rounds, self.store.statistics()
        held = self.groups.values()
        flushes = rounds.flush_latency.snapshot()
        waiting_groups, waiting_batches, waiting_promises = rounds.depths()
        return HostStatistics(
            groups=len(held),
            leading=sum(group.core.role is Role.LEADER for group in held),
            stopped={group.id: group.stopped for group in held if group.stopped is not None},
            healthy=trouble is None,
            failure=trouble,
            rounds=rounds.rounds,
            flushes=flushes.count,
            written_bytes=store.written_bytes,
            applied_entries=rounds.applied_entries,
            refused_writes=store.refusals,
            late_ticks=self.ticker.late,
            loop_lag_seconds_last=self.ticker.lag_last,
            loop_lag_seconds_max=self.ticker.lag_max,
            recoveries=self.recovery.count,
            snapshots_sent=self.exchange.sent,
            snapshots_resumed=self.exchange.resumed,
            snapshots_installed=self.exchange.installed,
            awake=len(self.vigil.awake),
            recovering=sum(group.core.recovering for group in held),
            waiting_groups=waiting_groups,
            waiting_batches=waiting_batches,
            waiting_promises=waiting_promises,
            waiting_bytes=sum(group.waiting_bytes for group in held),
            refused_messages=self.complaints.refused_messages,
            stray_messages=self.complaints.stray_messages,
            refused_entries=self.complaints.refused_entries,
            flush_latency=flushes,
            commit_latency=rounds.commit_latency.snapshot(),
        )

    def metrics(self, trouble: str | None) -> HostMetrics:
        groups = self.groups.values()
        return HostMetrics(
            self.statistics(trouble),
            terms={group.id: group.core.term for group in groups},
            leaders={group.id: group.core.leader for group in groups},
        )
