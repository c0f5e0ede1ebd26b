"""Applies a Ready to the state machine of its group: leader changes, entries, reads, snapshots.

Owns: the order of these calls to a machine, and the commit latency.
May not touch: the disk and the transport (raft/host/round_loop.py), what machines do with entries.
Spec: steps 1, 5 and 6 of Ready in raft/core/ready.py. An exception of a machine stops its group on
this node and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from raft.core.messages import Entry
from raft.core.ready import Ready
from raft.host.group import Group
from raft.host.latency import Histogram
from raft.store.records import StoreFailed
from raft.types import NodeId, Role, SnapshotMeta


class ReadySnapshots(Protocol):
    """What a Ready may ask for: see SnapshotExchange."""

    def install(self, group: Group, meta: SnapshotMeta) -> None: ...

    def unused(self, group: Group) -> None: ...

    def start_transfer(self, group: Group, to: NodeId) -> None: ...


class Applier:
    def __init__(
        self,
        *,
        snapshots: ReadySnapshots,
        group_failed: Callable[[Group, Exception], None],
        store_failed: Callable[[BaseException], None],
    ) -> None:
        self.applied_entries = 0
        self.commit_latency = Histogram()
        self._snapshots = snapshots
        self._group_failed = group_failed
        self._store_failed = store_failed

    def apply(self, group: Group, ready: Ready) -> bool:
        """Returns whether the group keeps running."""
        if group.stopped is not None:
            return False
        try:
            self._announce_leader(group, ready)
            if ready.snapshot is not None:
                self._snapshots.install(group, ready.snapshot)
            elif group.arrived is not None:
                self._snapshots.unused(group)
            if ready.committed:
                self._apply_entries(group, ready.committed)
            group.reads.advance(ready.reads, group.core.applied_index)
        except StoreFailed as error:  # of a machine that writes to the same database
            self._store_failed(error)
            return False
        except Exception as error:  # noqa: BLE001 - stops this group
            self._group_failed(group, error)
            return False
        for to in ready.snapshot_to:
            self._snapshots.start_transfer(group, to)
        return True

    def _announce_leader(self, group: Group, ready: Ready) -> None:
        facts = (ready.leader, ready.term, ready.role is Role.LEADER)
        if facts == group.announced:
            return
        group.announced = facts
        group.waiting_bytes = 0
        group.sampled = None
        leader, term, ours = facts
        if not ours:
            group.reads.fail(leader)
        group.machine.leader_changed(leader=leader, term=term, ours=ours)

    def _apply_entries(self, group: Group, committed: list[Entry]) -> None:
        group.machine.apply(committed)
        self.applied_entries += len(committed)
        if group.waiting_bytes:
            size = sum(len(entry.data) for entry in committed)
            group.waiting_bytes = max(0, group.waiting_bytes - size)
        index = committed[-1].index
        if group.sampled is not None and group.sampled[0] <= index:
            self.commit_latency.observe(time.monotonic() - group.sampled[1])
            group.sampled = None
        group.core.applied(index)
