"""Applies a Ready to the state machine of its group: leader changes, entries, reads, snapshots.

Owns: the order of these calls to a machine, the committed entries that wait to be applied, and the
commit latency.
May not touch: the disk and the transport (raft/host/round_loop.py), what machines do with entries.
Spec: steps 1, 5 and 6 of Ready in raft/core/ready.py. An exception of a machine stops its group on
this node and nothing else.

Applying many entries does not block the loop: after a time slice, the rest of the group's entries
wait for another turn, and until then the group produces no Ready with further committed entries.
Heartbeats, votes and log writes continue. A single entry that takes long is prepared in steps
before it is applied (PreparingMachine). A machine may also hold its entries back until the disk has
taken what is applied."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from raft.core.messages import Entry
from raft.core.ready import Ready
from raft.host.group import Group
from raft.host.latency import Histogram
from raft.store.records import StoreFailed
from raft.types import NodeId, Role, SnapshotMeta, Term

APPLY_S = 0.002  # the time slice of a group, and of all groups in a round
ROUND_S = 2 * APPLY_S  # time used longer ago than this belongs to an earlier round
CHUNK_BYTES = 16 << 10  # entries applied together, between two readings of the clock


class ReadySnapshots(Protocol):
    """SnapshotExchange, as far as the applier uses it."""

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
        later: Callable[[Group, Callable[[], None]], None],
        resume: Callable[[Group], None],
    ) -> None:
        """`later` calls back in another turn of the loop; `resume` is called when a group has
        applied its deferred entries."""
        self.applied_entries = 0
        self.commit_latency = Histogram()
        self._snapshots = snapshots
        self._group_failed = group_failed
        self._store_failed = store_failed
        self._later = later
        self._resume = resume
        self._round_began = 0.0
        self._round_used_s = 0.0

    def apply(self, group: Group, ready: Ready) -> bool:
        """Returns whether the group keeps running and has applied everything."""
        if group.stopped is not None:
            return False
        leader = (ready.leader, ready.term, ready.role is Role.LEADER)
        if group.announced == leader and _only_writes(group, ready):
            return not group.deferred
        done = False
        try:
            if group.announced != leader:
                self._announce_leader(group, leader)
            if ready.snapshot is not None:
                group.backlog.clear()  # the snapshot includes them
                group.preparing = None
                self._snapshots.install(group, ready.snapshot)
            elif group.arrived is not None:
                self._snapshots.unused(group)
            group.backlog.extend(ready.committed)
            done = not group.deferred and self._in_round(group)
            if ready.reads or group.reads.confirmed:
                group.reads.advance(ready.reads, group.core.applied_index)
        except StoreFailed as error:  # of a machine that writes to the same database
            self._store_failed(error)
            return False
        except Exception as error:  # noqa: BLE001 - stops this group
            self._group_failed(group, error)
            return False
        for to in ready.snapshot_to:
            self._snapshots.start_transfer(group, to)
        return done

    def forget(self, group: Group) -> None:
        """The group was removed."""
        group.backlog.clear()
        group.preparing = None

    def _in_round(self, group: Group) -> bool:
        """Apply now, unless other groups have used up the time of this round: fifty groups would
        block the loop for fifty slices. Returns whether the backlog is empty."""
        began = time.perf_counter()
        if began - self._round_began > ROUND_S:
            self._round_began, self._round_used_s = began, 0.0
        if group.backlog and self._round_used_s > APPLY_S:
            self._defer(group)
            return False
        done = self._work_off(group, began)
        self._round_used_s += time.perf_counter() - began
        return done

    def _defer(self, group: Group) -> None:
        group.deferred = True
        self._later(group, partial(self._go_on, group))

    def _work_off(self, group: Group, began: float) -> bool:
        """Apply the backlog for a time slice. Returns whether it is empty."""
        backlog = group.backlog
        if not backlog:
            return True
        deadline = began + APPLY_S
        is_long = group.preparer.is_long if group.preparer is not None else _never
        while backlog:
            if is_long(backlog[0]) and not self._prepared(group, backlog[0], deadline):
                return False
            chunk = [backlog.popleft()]
            size = len(chunk[0].data)
            while backlog and size + len(backlog[0].data) <= CHUNK_BYTES:
                if is_long(backlog[0]):
                    break
                chunk.append(backlog.popleft())
                size += len(chunk[-1].data)
            self._apply_entries(group, chunk)
            if backlog and time.perf_counter() > deadline:
                self._defer(group)
                return False
        return True

    def _prepared(self, group: Group, entry: Entry, deadline: float) -> bool:
        """Prepare the entry until the deadline. Returns whether preparation is complete; if it is
        not, the group continues later."""
        assert group.preparer is not None
        if group.preparing is None or group.preparing[0] is not entry:
            group.preparing = (entry, group.preparer.prepare(entry))
        for awaited in group.preparing[1]:
            if awaited is not None:
                group.preparing = None
                group.deferred = True
                awaited.add_done_callback(lambda _: self._defer(group))
                return False
            if time.perf_counter() > deadline:
                self._defer(group)
                return False
        group.preparing = None
        return True

    def _go_on(self, group: Group) -> None:
        group.deferred = False
        if group.stopped is not None or not group.backlog:
            return
        try:
            done = self._work_off(group, time.perf_counter())
            group.reads.advance((), group.core.applied_index)
        except StoreFailed as error:
            self._store_failed(error)
        except Exception as error:  # noqa: BLE001 - stops this group
            self._group_failed(group, error)
        else:
            if done:
                self._resume(group)

    def _announce_leader(self, group: Group, facts: tuple[NodeId | None, Term, bool]) -> None:
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
            waiting = group.waiting_bytes
            for entry in committed:
                waiting -= len(entry.data)
            group.waiting_bytes = max(0, waiting)
        index = committed[-1].index
        if group.sampled is not None and group.sampled[0] <= index:
            self.commit_latency.observe(time.monotonic() - group.sampled[1])
            group.sampled = None
        group.core.applied(index)


def _only_writes(group: Group, ready: Ready) -> bool:
    """Whether the Ready has nothing for the machine: half of a leader's Readies."""
    return not (
        ready.committed
        or ready.reads
        or ready.snapshot_to
        or ready.snapshot is not None
        or group.arrived is not None
    )


def _never(_entry: Entry) -> bool:
    return False
