"""The groups that this node takes part in.

Owns: the table of groups, opening a group's log, stopping a group that has failed.
May not touch: rounds, ticks, messages (raft/host/host.py connects them).
Spec: a state machine that raises, or a broken invariant, stops its group on this node only. The
other groups keep running, and the other members of the group elect a leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from raft.core.log import RaftLog, TailRoom
from raft.core.raft_core import RaftCore
from raft.core.ready import CoreConfig
from raft.host.group import (
    Group,
    GroupStopped,
    HostLimits,
    MachineDamaged,
    StateMachine,
    UnknownGroup,
)
from raft.store.disk_space import Space
from raft.store.group_log import GroupLog, MemoryLog
from raft.store.log_store import LogStore
from raft.store.records import DamagedLog
from raft.store.write_batch import LogBatch
from raft.types import GroupId, HardState, Index, NodeId, SnapshotMeta, Term, lacks_memory

_log = logging.getLogger("raft.host")


class GroupTable:
    def __init__(
        self,
        *,
        node: NodeId,
        store: LogStore,
        config: CoreConfig,
        limits: HostLimits,
        draw: Callable[[int, int], int],
        may_lead: Callable[[bool], bool],
    ) -> None:
        self.groups: dict[GroupId, Group] = {}  # changed only here
        self.running = False  # while False, nothing can be proposed
        self._node = node
        self._store = store
        self._config = config
        self._limits = limits
        self._tails = TailRoom(limits.tails_bytes_max)
        self._draw = draw
        self._may_lead = may_lead

    def add(
        self,
        group: GroupId,
        *,
        voters: Sequence[NodeId],
        learners: Sequence[NodeId],
        machine: StateMachine,
        applied: Index,
        persistent: bool,
        log_lost: bool,
        relaxed: bool,
        applied_term: Term | None,
    ) -> Group:
        """See Host.add_group."""
        if group in self.groups:
            raise ValueError(f"group {group} is already on this node")
        log = self._open_log(group, applied, persistent=persistent, log_lost=log_lost)
        if persistent:
            self._complete_installation(log, applied, applied_term)
        if not log.first_index() - 1 <= applied <= log.last_index():
            reason = f"the machine has applied {applied}, the log ends at {log.last_index()}"
            raise DamagedLog(group, log.first_index(), reason)
        core = RaftCore(
            node=self._node,
            voters=voters,
            learners=learners,
            log=RaftLog(log, tail_bytes_max=self._limits.tail_bytes_max, room=self._tails),
            hard_state=log.hard_state(),
            config=self._config,
            draw=self._draw,
            applied=applied,
            may_lead=self._may_lead,
        )
        added = Group(group, core=core, log=log, machine=machine, persistent=persistent)
        added.relaxed = relaxed and self._store.flush_interval_s is not None
        self.groups[group] = added
        return added

    def _open_log(
        self, group: GroupId, applied: Index, *, persistent: bool, log_lost: bool
    ) -> GroupLog:
        if persistent and log_lost:
            return self._store.give_up_log(group, applied)
        if persistent:
            return self._store.reader(group)
        log = MemoryLog(group)
        if self._store.exists(group):
            log.record = log.record.with_hard_state(self._promises_kept(group))
        return log

    def _promises_kept(self, group: GroupId) -> HardState:
        """Term and vote of a group whose log was in memory."""
        try:
            return self._store.hard_state(group).after_loss()
        except DamagedLog:
            return self._store.give_up_log(group).hard_state()

    def _complete_installation(self, log: GroupLog, applied: Index, term: Term | None) -> None:
        """Move the log forward to the machine's state, if a crash came between the two steps of
        installing a snapshot, or if the log has lost its end (`term` is given for groups where
        that may happen). Blocking, and rare."""
        meta = log.record.installing
        if term is not None and applied > log.last_index():
            meta = SnapshotMeta(applied, term, log.members_at(log.last_index()))
        if meta.index and applied == meta.index and log.term(meta.index) != meta.term:
            batch = LogBatch()
            batch.put_snapshot(log.group, meta)
            self._store.write(batch, may_wait=True)
            self._store.flush()

    def remove(self, group: GroupId) -> Group | None:
        removed = self.groups.pop(group, None)
        if removed is not None:
            removed.stopped = "removed"
            removed.core.log.leave()
            removed.reads.fail(None)
        return removed

    def wipe(self, group: GroupId) -> None:
        """Delete the log and the votes of a group that no longer exists."""
        batch = LogBatch()
        batch.remove(group)
        self._store.write(batch, may_wait=True)

    def get(self, group: GroupId) -> Group:
        """Raises UnknownGroup."""
        held = self.groups.get(group)
        if held is None:
            raise UnknownGroup(f"group {group} is not on this node")
        return held

    def working(self, group: GroupId, space: Space = Space.SCARCE) -> Group:
        """Raises UnknownGroup or GroupStopped, also if the disk has less space than this."""
        held = self.groups.get(group)
        if held is None:
            raise UnknownGroup(f"group {group} is not on this node")
        if held.stopped is not None or not self.running:
            raise GroupStopped(group, held.stopped or "the node is not running")
        if held.persistent and (self._store.space < space or self._store.exhausted):
            raise GroupStopped(group, "the disk is full")
        return held

    def fail(self, group: Group, error: Exception) -> None:
        """A bug in this package or in the state machine, or damaged state: stop this replica rather
        than continue from a wrong state."""
        if group.stopped is not None:
            return
        if isinstance(error, MachineDamaged):
            _log.error("group %d is stopped on this node: %s", group.id, error)
        else:
            _log.critical("group %d is stopped on this node", group.id, exc_info=error)
        self._stop(group, f"{type(error).__name__}: {error}")
        if lacks_memory(error):  # not the group's fault, and not its alone
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"group {group.id} is out of memory", "exception": error}
            )

    def stop_persistent(self, reason: str) -> None:
        """Stop every group that needs the disk for its log."""
        for group in self.groups.values():
            if group.stopped is None and group.persistent:
                self._stop(group, reason)

    def _stop(self, group: Group, reason: str) -> None:
        group.stopped = reason
        group.reads.fail(None)
        try:
            group.machine.leader_changed(leader=None, term=group.core.term, ours=False)
        except Exception:  # noqa: BLE001 - logged; the group is stopped anyway
            _log.exception("the machine of stopped group %d failed in leader_changed", group.id)
