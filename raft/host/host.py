"""All Raft groups of one node: one ticker, one round per turn of the loop, one flush for all.

Owns: the public API of the host, the wiring of its parts, the tick.
May not touch: the consensus rules (raft.core), what state machines do with entries.

Where to find the parts:

    group_table      the groups; a failing state machine stops its group only
    rounds           collects the work of all groups into one write and one flush; pure
    round_loop       runs the rounds on the event loop; raft/store/flush_thread.py has the fsync
    applier          committed entries, leader changes and reads, given to the state machines
    reads            read barriers and lease reads
    snapshots        sending and installing snapshots; raft/snapshot/ has the transfers
    compaction       log compaction: where logs are cut
    quiescence       idle groups sleep and cost nothing
    disk_recovery    a failing disk stops every promise until the store is open again
    inbound          messages from peers; raft/transport/ has the links and their handshake
    ticker           real time, and how punctual ticks are
    statistics       what the host reports"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from raft.clock.boot_clock import boot_seconds
from raft.clock.cluster_clock import ClusterClock
from raft.core.ready import CoreConfig
from raft.host.applier import Applier
from raft.host.compaction import CompactionPolicy, Compactor
from raft.host.disk_recovery import DiskRecovery
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
from raft.host.group_table import GroupTable
from raft.host.inbound import Inbound, Rejections
from raft.host.quiescence import Quiescence
from raft.host.round_loop import RoundLoop
from raft.host.snapshots import SnapshotExchange
from raft.host.statistics import HostMetrics, HostObserver, HostStatistics
from raft.host.ticker import Ticker
from raft.store.disk_space import Space
from raft.store.flush_thread import FlushThread
from raft.store.log_store import LogStore
from raft.store.records import StoreFailed
from raft.transport.transport import CLOCK, RAFT_BULK, RAFT_CONTROL, Transport
from raft.types import GroupId, Index, NodeId, Role, Term

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


class Host:
    """Build it, add groups, then run `run` as a task of the application."""

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
        flush_thread: Callable[..., FlushThread] = FlushThread,
        later: Callable[[Group, Callable[[], None]], None] | None = None,
        clock: ClusterClock | None = None,
    ) -> None:
        """`on_failure` is called when the disk has failed and the node promises nothing more.
        With `on_recovered`, the host tries to recover, and calls it when the store is open again.
        By then all groups except those with a log in memory have been removed, and the columns and
        handles of the store are new: add the groups as at the start, with machines loaded from the
        durable state. Without `on_recovered`, a failure is final until a restart. `later` calls
        back in another turn of the loop: a group that has applied entries for a while yields to
        others. `clock`: a node whose clock is wrong leaves elections to others; without a clock
        the host has no cluster time."""
        self.node = node
        self._limits = limits
        config = config or CoreConfig()
        self._ticker = Ticker(tick_ms=tick_ms, lease_ticks=config.lease_ticks)
        self._table = GroupTable(
            node=node,
            store=store,
            config=config,
            limits=limits,
            draw=draw or random.randrange,
            may_lead=(lambda _alone: True) if clock is None else clock.may_lead,
        )
        self._groups = self._table.groups  # read here; the table changes it
        self._disk = DiskRecovery(
            store=store,
            groups=self._table,
            remove=self._release,
            on_failure=on_failure,
            on_recovered=on_recovered,
        )
        self._snapshots = SnapshotExchange(
            node=node,
            store=store,
            transport=transport,
            groups=self._groups,
            limits=limits,
            group_failed=self._table.fail,
            store_failed=self._disk.failed,
        )
        self._applier = Applier(
            snapshots=self._snapshots,
            group_failed=self._table.fail,
            store_failed=self._disk.failed,
            later=later or _in_next_turn,
            resume=self._touch,
        )
        self._rounds = RoundLoop(
            store=store,
            transport=transport,
            apply=self._applier.apply,
            flush_thread=flush_thread,
            group_failed=self._table.fail,
            store_failed=self._disk.failed,
        )
        self._compactor = Compactor(
            compaction,
            store=store,
            transport=transport,
            indices_needed=self._snapshots.indices_needed,
            group_failed=self._table.fail,
            store_failed=self._disk.failed,
        )
        self._quiescence = Quiescence(
            transport=transport,
            config=config,
            groups=self._groups,
            mark=self._rounds.mark,
            call_soon=_call_soon,
            yields=(lambda _node: False) if clock is None else clock.is_wrong,
        )
        self._rejections = Rejections()
        self._inbound = Inbound(
            node=node,
            groups=self._groups,
            peers=self._quiescence,
            rejections=self._rejections,
            touch=self._touch,
            group_failed=self._table.fail,
        )
        self._observer = HostObserver(
            groups=self._groups,
            store=store,
            rounds=self._rounds,
            applier=self._applier,
            ticker=self._ticker,
            disk=self._disk,
            snapshots=self._snapshots,
            quiescence=self._quiescence,
            rejections=self._rejections,
        )
        self._ended = asyncio.Event()
        transport.register(RAFT_CONTROL, self._inbound.received, borrowed=True)
        transport.register(RAFT_BULK, self._inbound.received, borrowed=True)
        self._clock = clock
        if clock is not None:
            transport.register(CLOCK, clock.received, borrowed=True)

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
        """Take part in a group. `applied` is the index of the machine's durable state. `voters`
        and `learners` are those the group started with; its log knows how they changed. Raises
        DamagedLog when the log is damaged, or ends before `applied`. Then the group may be added
        with `log_lost`: the rest of the log is given up, except its beginning up to `applied` if
        that can be read (otherwise DamagedLog is raised again; add it with an empty machine), and
        the member does not vote until it has caught up. The same holds for a member whose log was
        in memory only (`persistent` is False) after a restart. `relaxed`: see flush_interval_s of
        StoreTuning; given `applied_term`, a log that lost its end continues after `applied`."""
        added = self._table.add(
            group,
            voters=voters,
            learners=learners,
            machine=machine,
            applied=applied,
            persistent=persistent,
            log_lost=log_lost,
            relaxed=relaxed,
            applied_term=applied_term,
        )
        self._touch(added)
        self._inbound.added(added)

    def remove_group(self, group: GroupId, *, wipe: bool) -> None:
        """Leave a group. `wipe`: also delete its log and votes, because the group no longer
        exists."""
        self._release(group)
        if wipe:
            self._table.wipe(group)

    def _release(self, group: GroupId) -> None:
        removed = self._table.remove(group)
        if removed is not None:
            self._quiescence.forget(removed)
            self._rounds.forget(removed)
            self._applier.forget(removed)
            self._snapshots.forget(removed)

    def _touch(self, group: Group) -> None:
        """The group's core got input: check it in the next round."""
        if group.core.asleep or group.id not in self._quiescence.awake:
            self._quiescence.update(group)
        self._rounds.mark(group)

    def groups(self) -> list[GroupId]:
        return list(self._groups)

    def held(self, group: GroupId) -> Group | None:
        return self._groups.get(group)

    # failures that the application found

    def group_failed(self, group: Group, error: Exception) -> None:
        """The group's machine has failed outside of apply(): stop the group on this node."""
        self._table.fail(group, error)

    def store_failed(self, error: BaseException) -> None:
        """A write or flush of the application to the store has failed."""
        self._disk.failed(error)

    # proposals and reads

    def propose(
        self, group: GroupId, data: bytes, *, space: Space = Space.AMPLE
    ) -> tuple[Term, Index]:
        """Append to the log of a group that we lead. It is committed when apply() sees an entry
        of this index with this term; with another term, it was lost. `space`: what the disk must
        have left; small entries, and those that free space, need less. Raises NotLeader,
        GroupBusy, EntryTooLarge, GroupStopped or UnknownGroup, all definite."""
        held = self._table.working(group, space)
        if len(data) > self._limits.entry_bytes_max:
            self._rejections.entry_too_large(self.node, group, len(data))
            raise EntryTooLarge(len(data), self._limits.entry_bytes_max)
        waiting = held.waiting_bytes + len(data)
        if held.waiting_bytes and waiting > self._limits.waiting_bytes_max:
            raise GroupBusy(group, held.waiting_bytes)
        core = held.core
        index = core.propose(data)
        held.waiting_bytes = waiting
        if held.sampled is None:
            held.sampled = (index, time.monotonic())
        self._touch(held)
        return core.log.last_term, index

    def together(self, work: Callable[[], None]) -> None:
        """Call `work`; what it proposes is written and sent in this turn of the loop, not in the
        next one. For a caller that has collected the proposals of this turn."""
        self._rounds.together(work)

    def change_members(
        self, group: GroupId, *, voters: Sequence[NodeId], learners: Sequence[NodeId] = ()
    ) -> tuple[Term, Index]:
        """Begin to make these the members of a group that we lead (RaftCore.change_members).
        Raises ChangeRefused, NotLeader, GroupStopped or UnknownGroup, all definite."""
        held = self._table.working(group)
        index = held.core.change_members(voters=voters, learners=learners)
        self._touch(held)
        return held.core.term, index

    async def read_barrier(self, group: GroupId) -> Index:
        """Returns when the machine of a group that we lead has applied everything that was
        committed before the call. Raises NotLeader, also when leadership is lost meanwhile."""
        held = self._table.working(group)
        context, confirmed = held.reads.begin()
        try:
            self._touch(held)
            return await confirmed
        finally:
            held.reads.end(context)

    def reads_are_current(self, group: GroupId) -> bool:
        """Whether a read of a group that we lead needs no barrier (GroupReads.are_current)."""
        held = self._groups.get(group)
        if held is None or held.core.leads_alone():
            return held is not None
        return held.reads.are_current(self._ticker.pace, boot_seconds())

    # leadership

    def leader(self, group: GroupId) -> NodeId | None:
        held = self._table.get(group)
        return None if held.stopped is not None else held.core.leader

    def role(self, group: GroupId) -> Role:
        return self._table.get(group).core.role

    def transfer(self, group: GroupId, to: NodeId) -> None:
        """Hand leadership over. Raises NotLeader."""
        held = self._table.get(group)
        held.core.transfer_leader(to)
        self._touch(held)

    def campaign(self, group: GroupId) -> None:
        """Try to become leader now."""
        held = self._table.get(group)
        held.core.wake()
        held.core.campaign()
        self._touch(held)

    # what it reports

    @property
    def failure(self) -> BaseException | None:
        """The failure of the disk that stops every promise of this node, if there is one."""
        return self._disk.failure

    def trouble(self) -> str | None:
        """Why this node cannot acknowledge anything, if so. It ends when the disk works again."""
        return self._disk.trouble()

    def status(self, group: GroupId) -> GroupStatus:
        return self._table.get(group).status()

    @property
    def flushes(self) -> int:
        """Of the log, counted."""
        return self._rounds.flush_latency.count

    def statistics(self) -> HostStatistics:
        return self._observer.statistics()

    def metrics(self) -> HostMetrics:
        return self._observer.metrics()

    # running

    async def run(self) -> None:
        """Ticks and rounds until `stop`. When it returns, no flush is in flight; the store stays
        open, and the caller closes it."""
        snapshot_thread = ThreadPoolExecutor(1, thread_name_prefix="raft-snapshot")
        self._table.running = self._inbound.open = True
        try:
            self._rounds.open(asyncio.get_running_loop())
            async with asyncio.TaskGroup() as tasks:
                self._disk.open(self._rounds, tasks)
                self._snapshots.open(self._rounds, tasks, snapshot_thread)
                await self._ticker.run(self._tick)
                self._snapshots.close()
                self._disk.close()
        finally:
            self._table.running = self._inbound.open = False
            await self._rounds.close()
            snapshot_thread.shutdown(wait=True)
            self._ended.set()

    async def stop(self) -> None:
        """Ask `run` to return, and wait until it has."""
        self._ticker.stop()
        if self._table.running:
            await self._ended.wait()

    def _tick(self) -> None:
        """While the disk does not take writes, only groups with their logs in memory get ticks."""
        silent = self.failure is not None or self._disk.is_exhausted()
        if silent:
            self._ticker.pace.interrupted()
        else:
            self._quiescence.tick()
            if self._clock is not None:
                self._clock.tick()
        for group in list(self._quiescence.awake.values()):
            if group.stopped is not None:
                self._quiescence.forget(group)
            elif not (silent and group.persistent):
                self._tick_group(group)
        every = self._compactor.policy.every_ticks
        if self._ticker.ticks % (max(1, every // 4) if self._disk.in_need() else every) == 0:
            self._compact()

    def _tick_group(self, group: Group) -> None:
        try:
            group.core.tick()
        except Exception as error:  # noqa: BLE001 - stops this group
            self._table.fail(group, error)
            return
        self._quiescence.ticked(group)
        if group.core.has_ready():
            self._rounds.mark(group)

    def _compact(self) -> None:
        self._snapshots.sweep()
        chosen = self._compactor.choose(self._groups, self._quiescence.awake)
        try:
            failed = self.failure is not None  # compaction frees space, so it runs on a full disk
            self._compactor.run(g for g in chosen if not (failed and g.persistent))
        except StoreFailed as error:
            self._disk.failed(error)
        self._compactor.reclaim()


def _in_next_turn(_group: Group, act: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(act)


def _call_soon(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)
