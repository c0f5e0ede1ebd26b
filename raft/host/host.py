"""All Raft groups of one node: one ticker, one round per turn of the loop, one flush for all.

Owns: the groups, their ticks and messages, what stops a group or the node, snapshot streams,
cutting logs.
May not touch: the consensus rules (raft.core), what machines do with entries.
Spec: DESIGN sections 4-6. A failing disk stops every promise of this node until the store could be
opened anew (raft.recovery); a failing machine or a broken invariant stops its group only. Ticks
come from raft.ticker. Idle groups sleep and cost nothing (raft.vigil)."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from raft.core.log import RaftLog
from raft.core.raft_core import RaftCore
from raft.core.ready import CoreConfig
from raft.host.compaction import CompactionPolicy, Compactor
from raft.host.disk_recovery import Recovery
from raft.host.group import (
    EntryTooLarge,
    Group,
    GroupBusy,
    GroupStatus,
    GroupStopped,
    HostLimits,
    StateMachine,
    UnknownGroup,
)
from raft.host.inbound import Inbound
from raft.host.metrics import HostMetrics, HostStatistics
from raft.host.peer_errors import PeerErrors
from raft.host.quiescence import Vigil
from raft.host.read_barriers import Barriers
from raft.host.rounds import Rounds
from raft.host.snapshots import SnapshotExchange
from raft.host.statistics import Watch
from raft.host.ticker import Ticker
from raft.store.group_log import GroupLog, MemoryLog
from raft.store.log_store import LogStore
from raft.store.records import DamagedLog, StoreFailed
from raft.transport.transport import RAFT_BULK, RAFT_CONTROL, Transport
from raft.types import GroupId, Index, NodeId, Role, SnapshotMeta, Term

__all__ = [
    "CompactionPolicy",
    "EntryTooLarge",
    "GroupBusy",
    "GroupStatus",
    "GroupStopped",
    "Host",
    "HostLimits",
    "HostMetrics",
    "HostStatistics",
    "StateMachine",
    "UnknownGroup",
]

_log = logging.getLogger("raft.host")


class Host:
    """Build it, add groups, then let `run` be a task of the application."""

    def __init__(
        self,
        *,
        node: NodeId,
        store: LogStore,
        transport: Transport,
        config: CoreConfig | None = None,
        tick_ms: int = 50,
        compaction: CompactionPolicy = CompactionPolicy(),  # noqa: B008 - frozen
        limits: HostLimits = HostLimits(),  # noqa: B008 - frozen
        draw: Callable[[int, int], int] | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
        on_recovered: Callable[[], None] | None = None,
    ) -> None:
        """`on_failure` hears when the disk has failed and the node promises nothing more. With
        `on_recovered` the host tries to get out of this: it is called when the store was opened
        anew. All groups but those with a log in memory are gone then, and the columns and
        handles of the store are new: add the groups as at the start, with machines that are
        loaded from the durable state. Without it a failure is final until the restart."""
        self.node = node
        self.failure: BaseException | None = None
        self._store = store
        self._transport = transport
        self._config = config or CoreConfig()
        self._ticker = Ticker(tick_ms=tick_ms, election_ticks=self._config.election_ticks)
        self._limits = limits
        self._draw = draw or random.randrange
        self._on_failure = on_failure
        self._on_recovered = on_recovered
        self._groups: dict[GroupId, Group] = {}
        self._rounds = Rounds(store=store, transport=transport, supervisor=self)
        self._recovery = Recovery(store=store, rounds=self._rounds, groups=self._groups)
        self._exchange = SnapshotExchange(
            node=node,
            store=store,
            transport=transport,
            limits=limits,
            rounds=self._rounds,
            keeper=self,
        )
        self._compactor = Compactor(
            compaction,
            store=store,
            transport=transport,
            exchange=self._exchange,
            failed=self.group_failed,
            store_failed=self.store_failed,
        )
        self._vigil = Vigil(
            transport=transport,
            config=self._config,
            groups=self._groups,
            mark=self._rounds.mark,
            soon=_soon,
        )
        self._complaints = PeerErrors()
        self._inbound = Inbound(
            node=node,
            groups=self._groups,
            vigil=self._vigil,
            complaints=self._complaints,
            touch=self._touch,
            failed=self.group_failed,
        )
        self._watch = Watch(
            groups=self._groups,
            store=store,
            rounds=self._rounds,
            ticker=self._ticker,
            recovery=self._recovery,
            exchange=self._exchange,
            vigil=self._vigil,
            complaints=self._complaints,
        )
        self._running = self._told_full = False
        self._tasks: asyncio.TaskGroup | None = None
        self._recovering: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        transport.register(RAFT_CONTROL, self._inbound.received, borrowed=True)
        transport.register(RAFT_BULK, self._inbound.received, borrowed=True)

    # groups

    def add_group(
        self,
        group: GroupId,
        *,
        voters: Sequence[NodeId],
        machine: StateMachine,
        applied: Index,
        learners: Sequence[NodeId] = (),
        persistent: bool = True,
        log_lost: bool = False,
        relaxed: bool = False,
        applied_term: Term | None = None,
    ) -> None:
        """Take part in a group. `applied` is where the machine's durable state stands. `voters`
        and `learners` are those the group began with; its log knows how they changed. Raises
        DamagedLog when the log is damaged, or does not reach to where the machine stands. Then
        an empty machine may come back with `log_lost`: the rest of the log is given up, and the
        member gives no vote until it has caught up. So does a member whose log was in memory
        only (`persistent` is False) when it has been here before. `relaxed`: see StoreTuning's
        flush_interval_s; given `applied_term`, a log that lost its end goes on behind `applied`."""
        if group in self._groups:
            raise ValueError(f"group {group} is here already")
        log = self._open_log(group, persistent=persistent, log_lost=log_lost)
        if persistent:
            self._exchange.complete_after_crash(log, applied, applied_term)
        if not log.first_index() - 1 <= applied <= log.last_index():
            reason = f"the machine has applied {applied}, the log ends at {log.last_index()}"
            raise DamagedLog(group, log.first_index(), reason)
        core = RaftCore(
            node=self.node,
            voters=voters,
            learners=learners,
            log=RaftLog(log, tail_bytes_max=self._limits.tail_bytes_max),
            hard_state=log.hard_state(),
            config=self._config,
            draw=self._draw,
            applied=applied,
        )
        self._groups[group] = held = Group(
            group, core=core, log=log, machine=machine, persistent=persistent
        )
        held.relaxed = relaxed and self._store.flush_interval_s is not None
        self._touch(held)

    def _open_log(self, group: GroupId, *, persistent: bool, log_lost: bool) -> GroupLog:
        if persistent:
            return self._store.give_up_log(group) if log_lost else self._store.reader(group)
        log = MemoryLog(group)
        if self._store.exists(group):
            hard_state = self._store.hard_state(group).after_loss()
            log.record = log.record.with_hard_state(hard_state)
        return log

    def _touch(self, group: Group) -> None:
        """Something was put into its core: look at it in the next round."""
        self._vigil.rouse(group)
        self._rounds.mark(group)

    def remove_group(self, group: GroupId, *, wipe: bool) -> None:
        """Take part no longer. Wipe: its log and votes are forgotten, for a group that is gone."""
        held = self._groups.pop(group, None)
        if held is not None:
            held.stopped = "removed"
            if held.barriers is not None:
                held.barriers.fail(None)
            self._vigil.forget(held)
            self._rounds.forget(held)
            self._exchange.forget(held)
        if wipe:
            self._exchange.wipe(group)

    def groups(self) -> list[GroupId]:
        return list(self._groups)

    # callers

    def propose(self, group: GroupId, data: bytes) -> tuple[Term, Index]:
        """Append to the log of a group that we lead. It is committed when apply() sees an entry
        of this index with this term; with another term, it was lost. Raises NotLeader,
        GroupBusy, EntryTooLarge, GroupStopped or UnknownGroup, all definite."""
        held = self._working(group)
        if len(data) > self._limits.entry_bytes_max:
            self._complaints.entry_too_large(self.node, group, len(data))
            raise EntryTooLarge(len(data), self._limits.entry_bytes_max)
        waiting = held.waiting_bytes + len(data)
        if held.waiting_bytes and waiting > self._limits.waiting_bytes_max:
            raise GroupBusy(group, held.waiting_bytes)
        index = held.core.propose(data)
        held.waiting_bytes = waiting
        if held.sampled is None:
            held.sampled = (index, time.monotonic())
        self._touch(held)
        return held.core.term, index

    def change_members(
        self, group: GroupId, *, voters: Sequence[NodeId], learners: Sequence[NodeId] = ()
    ) -> tuple[Term, Index]:
        """Begin to make these the members of a group that we lead (RaftCore.change_members).
        Raises ChangeRefused, NotLeader, GroupStopped or UnknownGroup, all definite."""
        held = self._working(group)
        index = held.core.change_members(voters=voters, learners=learners)
        self._touch(held)
        return held.core.term, index

    async def read_barrier(self, group: GroupId, *, lease: bool = False) -> Index:
        """Returns when the machine of a group that we lead shows all that was committed before
        the call. `lease`: without asking the others while our lease holds, if the configuration
        allows it. Raises NotLeader, also when leadership is lost meanwhile."""
        held = self._working(group)
        loop = asyncio.get_running_loop()
        if held.barriers is None:
            held.barriers = Barriers()
        future: asyncio.Future[Index] = loop.create_future()
        context = held.barriers.open(future)
        on_time = self._ticker.pace.keeps_time(time.monotonic())
        try:
            held.core.read_index(context, lease=lease and on_time)
            self._touch(held)
            return await future
        finally:
            held.barriers.drop(context)

    def reads_are_current(self, group: GroupId) -> bool:
        """Whether a read of a group that we lead needs no barrier (Group.reads_are_current)."""
        held = self._groups.get(group)
        return held is not None and held.reads_are_current(self._ticker.pace, self._vigil.there)

    def leader(self, group: GroupId) -> NodeId | None:
        held = self._held(group)
        return None if held.stopped is not None else held.core.leader

    def role(self, group: GroupId) -> Role:
        return self._held(group).core.role

    def transfer(self, group: GroupId, to: NodeId) -> None:
        """Hand leadership over. Raises NotLeader."""
        held = self._held(group)
        held.core.transfer_leader(to)
        self._touch(held)

    def campaign(self, group: GroupId) -> None:
        """Try to become leader now."""
        held = self._held(group)
        held.core.wake()
        held.core.campaign()
        self._touch(held)

    def status(self, group: GroupId) -> GroupStatus:
        return self._held(group).status()

    def trouble(self) -> str | None:
        """Why this node can promise nothing, if so. It ends when the disk works again."""
        return self._store.trouble() if self.failure is None else str(self.failure)

    def statistics(self) -> HostStatistics:
        return self._watch.statistics(self.trouble())

    def metrics(self) -> HostMetrics:
        return self._watch.metrics(self.trouble())

    # life

    async def run(self) -> None:
        """Ticks and rounds until `stop`. On the way out no flush is left in flight; the store
        stays open and is the caller's to close."""
        loop = asyncio.get_running_loop()
        # Flushing a whole state takes long: the flush of the log must not stand behind it.
        snapshot_thread = ThreadPoolExecutor(1, thread_name_prefix="raft-snapshot")
        self._running = self._inbound.open = True
        try:
            self._rounds.open(loop)
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._exchange.open(tasks, snapshot_thread)
                await self._ticker.run(self._tick, self._stop)
                self._tasks = None
                self._exchange.close()
                if self._recovering is not None:
                    self._recovering.cancel()
        finally:
            self._running = self._inbound.open = False
            await self._rounds.close()
            snapshot_thread.shutdown(wait=True)
            self._ended.set()

    async def stop(self) -> None:
        """Ask `run` to return, and wait until it has."""
        self._stop.set()
        if self._running:
            await self._ended.wait()

    def _tick(self) -> None:
        """While the disk takes nothing, only groups with their logs in memory count time."""
        silent = self.failure is not None or self._disk_full()
        if silent:
            self._ticker.pace.interrupted()
        else:
            self._vigil.tick()
        for group in list(self._vigil.awake.values()):
            if group.stopped is not None:
                self._vigil.forget(group)
            elif not (silent and group.persistent):
                self._tick_group(group)
        if self._ticker.ticks % self._compactor.policy.every_ticks == 0:
            self._exchange.sweep()
            chosen = self._compactor.choose(self._groups, self._vigil.awake)
            try:
                self._compactor.run(g for g in chosen if not (silent and g.persistent))
            except StoreFailed as error:
                self.store_failed(error)
            self._compactor.reclaim()

    def _disk_full(self) -> bool:
        """Without room we fall silent, so that others lead, and go on when there is room."""
        full = not self._store.check_space()
        if full != self._told_full:
            self._told_full = full
            if full:
                _log.critical("the disk is full: this node acknowledges nothing until it has room")
            else:
                _log.warning("there is room on the disk again, this node goes on")
        return full

    def _tick_group(self, group: Group) -> None:
        try:
            group.core.tick()
        except Exception as error:  # noqa: BLE001 - ends this group, loudly
            self.group_failed(group, error)
            return
        self._vigil.ticked(group)
        if group.core.has_ready():
            self._rounds.mark(group)

    # supervision (called by rounds and installer)

    def group_failed(self, group: Group, error: Exception) -> None:
        """We, or the machine, are wrong: this replica stops rather than go on from there."""
        if group.stopped is not None:
            return
        group.stopped = f"{type(error).__name__}: {error}"
        _log.critical("group %d is stopped on this node", group.id, exc_info=error)
        self._tell_stopped(group)

    def store_failed(self, error: BaseException) -> None:
        """Nothing can be promised any more: every group falls silent, others elect leaders. But
        for those with their logs in memory: they go on until they have to vote."""
        if self.failure is not None:
            return
        self.failure = error
        _log.critical("the disk has failed, this node stops acknowledging", exc_info=error)
        for group in self._groups.values():
            if group.stopped is None and group.persistent:
                group.stopped = f"the disk has failed: {error}"
                self._tell_stopped(group)
        if self._on_failure is not None:
            self._on_failure(error)
        if self._on_recovered is not None and self._tasks is not None:
            self._recovering = self._tasks.create_task(
                self._recovery.run(self._resume), name="recovery of the store"
            )

    def _resume(self) -> None:
        """The store is open again: as after a crash, but for what lives in memory."""
        self.failure = self._recovering = None
        for group in list(self._groups.values()):
            if group.persistent:
                self.remove_group(group.id, wipe=False)
        self._rounds.start_over()
        _log.warning("the disk works again: this node goes on from what is on it")
        assert self._on_recovered is not None
        try:
            self._on_recovered()
        except Exception as error:  # noqa: BLE001 - the node stays silent, loudly
            self.store_failed(error)

    def _tell_stopped(self, group: Group) -> None:
        self._vigil.forget(group)
        if group.barriers is not None:
            group.barriers.fail(None)
        try:
            group.machine.leader_changed(leader=None, term=group.core.term, ours=False)
        except Exception:  # noqa: BLE001 - logged; the group is stopped anyway
            _log.exception("machine of stopped group %d does not take the news", group.id)

    def install(self, group: Group, meta: SnapshotMeta) -> None:
        self._exchange.install(group, meta)

    def snapshot_unused(self, group: Group) -> None:
        self._exchange.unused(group)

    def stream_snapshot(self, group: Group, to: NodeId) -> None:
        self._exchange.stream(group, to)

    def held(self, group: GroupId) -> Group | None:
        return self._groups.get(group)

    def _working(self, group: GroupId) -> Group:
        held = self._held(group)
        if held.stopped is not None or not self._running:
            raise GroupStopped(group, held.stopped or "the node does not run")
        if self._store.full and held.persistent:
            raise GroupStopped(group, "the disk is full")
        return held

    def _held(self, group: GroupId) -> Group:
        held = self._groups.get(group)
        if held is None:
            raise UnknownGroup(f"group {group} is not on this node")
        return held


def _soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)
