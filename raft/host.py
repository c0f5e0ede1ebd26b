"""All Raft groups of one node: one ticker, one round per turn of the loop, one flush for all.

Owns: the groups, their ticks and messages, what stops a group or the node, snapshot streams,
cutting logs.
May not touch: the consensus rules (raft.core), what machines do with entries.
Spec: DESIGN sections 4-6. A failing disk stops every promise of this node; a failing machine or a
broken invariant stops its group only. A stalled loop is measured and does not cause elections:
ticks that were missed count as one."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from raft.codec import CodecError, decode_frame
from raft.compaction import CompactionPolicy, Compactor
from raft.core import RaftCore
from raft.exchange import SnapshotExchange
from raft.group import (
    Group,
    GroupBusy,
    GroupStatus,
    GroupStopped,
    StateMachine,
    UnknownGroup,
)
from raft.group_log import GroupLog, MemoryLog
from raft.log import RaftLog
from raft.messages import MessageKind
from raft.ready import CoreConfig
from raft.records import DamagedLog, StoreFailed
from raft.rounds import Rounds
from raft.store import LogStore
from raft.transport import RAFT_BULK, RAFT_CONTROL, Transport
from raft.types import GroupId, Index, NodeId, Role, SnapshotMeta, Term

__all__ = [
    "CompactionPolicy",
    "GroupBusy",
    "GroupStatus",
    "GroupStopped",
    "Host",
    "HostLimits",
    "HostStatistics",
    "StateMachine",
    "UnknownGroup",
]

_log = logging.getLogger("raft.host")
_SOCKET_GRACE_SECONDS: Final = 0.002  # after a stall, what waits in the sockets comes first


@dataclass(frozen=True, slots=True)
class HostLimits:
    waiting_bytes_max: int = 64 << 20  # proposed and not applied, per group: then GroupBusy
    tail_bytes_max: int = 8 << 20  # log entries kept in memory per group for followers
    snapshot_streams_max: int = 4  # going out at once; further ones wait


@dataclass(frozen=True, slots=True)
class HostStatistics:
    groups: int
    leading: int
    stopped: dict[GroupId, str]
    healthy: bool
    failure: str | None
    rounds: int
    flushes: int
    flush_seconds_total: float
    flush_seconds_max: float
    written_bytes: int
    applied_entries: int
    refused_writes: int
    late_ticks: int
    loop_lag_seconds_last: float
    loop_lag_seconds_max: float
    snapshots_sent: int
    snapshots_installed: int


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
    ) -> None:
        """`on_failure` hears once, when the disk has failed and the node promises nothing more."""
        self.node = node
        self.failure: BaseException | None = None
        self._store = store
        self._transport = transport
        self._config = config or CoreConfig()
        self._tick_seconds = tick_ms / 1000
        self._limits = limits
        self._draw = draw or random.randrange
        self._on_failure = on_failure
        self._groups: dict[GroupId, Group] = {}
        self._rounds = Rounds(store=store, transport=transport, supervisor=self)
        self._exchange = SnapshotExchange(
            node=node,
            store=store,
            transport=transport,
            streams_max=limits.snapshot_streams_max,
            rounds=self._rounds,
            keeper=self,
        )
        self._compactor = Compactor(
            compaction,
            store=store,
            transport=transport,
            exchange=self._exchange,
            failed=self.group_failed,
        )
        self._running = False
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._ticks = self._late_ticks = 0
        self._lag_last = self._lag_max = 0.0
        transport.register(RAFT_CONTROL, self._on_frame, borrowed=True)
        transport.register(RAFT_BULK, self._on_frame, borrowed=True)

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
    ) -> None:
        """Take part in a group. `applied` is where the machine's durable state stands. Raises
        DamagedLog when the log is damaged, or does not reach to where the machine stands."""
        if group in self._groups:
            raise ValueError(f"group {group} is here already")
        log: GroupLog = self._store.reader(group) if persistent else MemoryLog(group)
        if persistent:
            self._exchange.complete_after_crash(log, applied)
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
            group,
            core=core,
            log=log,
            machine=machine,
            members=frozenset((*voters, *learners)) - {self.node},
            persistent=persistent,
        )
        self._rounds.mark(held)

    def remove_group(self, group: GroupId, *, wipe: bool) -> None:
        """Take part no longer. Wipe: its log and votes are forgotten, for a group that is gone."""
        held = self._groups.pop(group, None)
        if held is not None:
            held.stopped = "removed"
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
        GroupBusy, GroupStopped or UnknownGroup, all definite."""
        held = self._held(group)
        if held.stopped is not None or not self._running:
            raise GroupStopped(group, held.stopped or "the node does not run")
        waiting = held.waiting_bytes + len(data)
        if held.waiting_bytes and waiting > self._limits.waiting_bytes_max:
            raise GroupBusy(group, held.waiting_bytes)
        index = held.core.propose(data)
        held.waiting_bytes = waiting
        self._rounds.mark(held)
        return held.core.term, index

    def leader(self, group: GroupId) -> NodeId | None:
        held = self._held(group)
        return None if held.stopped is not None else held.core.leader

    def role(self, group: GroupId) -> Role:
        return self._held(group).core.role

    def transfer(self, group: GroupId, to: NodeId) -> None:
        """Hand leadership over. Raises NotLeader."""
        held = self._held(group)
        held.core.transfer_leader(to)
        self._rounds.mark(held)

    def campaign(self, group: GroupId) -> None:
        """Try to become leader now."""
        held = self._held(group)
        held.core.campaign()
        self._rounds.mark(held)

    def status(self, group: GroupId) -> GroupStatus:
        return self._held(group).status()

    def statistics(self) -> HostStatistics:
        rounds, store = self._rounds, self._store.statistics()
        held = self._groups.values()
        return HostStatistics(
            groups=len(held),
            leading=sum(group.core.role is Role.LEADER for group in held),
            stopped={group.id: group.stopped for group in held if group.stopped is not None},
            healthy=self.failure is None and store.healthy,
            failure=str(self.failure) if self.failure is not None else store.failure,
            rounds=rounds.rounds,
            flushes=rounds.flushes,
            flush_seconds_total=rounds.flush_seconds_total,
            flush_seconds_max=rounds.flush_seconds_max,
            written_bytes=store.written_bytes,
            applied_entries=rounds.applied_entries,
            refused_writes=store.refusals,
            late_ticks=self._late_ticks,
            loop_lag_seconds_last=self._lag_last,
            loop_lag_seconds_max=self._lag_max,
            snapshots_sent=self._exchange.sent,
            snapshots_installed=self._exchange.installed,
        )

    # life

    async def run(self) -> None:
        """Ticks and rounds until `stop`. On the way out no flush is left in flight; the store
        stays open and is the caller's to close."""
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, thread_name_prefix="raft-storage")
        # Flushing a whole state takes long: the flush of the log must not stand behind it.
        snapshot_thread = ThreadPoolExecutor(1, thread_name_prefix="raft-snapshot")
        self._running = True
        try:
            self._rounds.open(loop, thread)
            async with asyncio.TaskGroup() as tasks:
                self._exchange.open(tasks, snapshot_thread)
                await self._tick_until_stopped(loop)
                self._exchange.close()
        finally:
            self._running = False
            await self._rounds.close()
            thread.shutdown(wait=True)
            snapshot_thread.shutdown(wait=True)
            self._ended.set()

    async def stop(self) -> None:
        """Ask `run` to return, and wait until it has."""
        self._stop.set()
        if self._running:
            await self._ended.wait()

    async def _tick_until_stopped(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + self._tick_seconds
        while not self._stop.is_set():
            try:
                async with asyncio.timeout_at(due):
                    await self._stop.wait()
            except TimeoutError:
                lag = loop.time() - due
            else:
                return
            self._lag_last = lag
            self._lag_max = max(self._lag_max, lag)
            if lag > self._tick_seconds:
                self._late_ticks += 1
                await asyncio.sleep(_SOCKET_GRACE_SECONDS)
                due = loop.time() + self._tick_seconds
            else:
                due += self._tick_seconds
            self._tick()

    def _tick(self) -> None:
        if self.failure is not None:
            return
        self._ticks += 1
        for group in self._groups.values():
            if group.stopped is None:
                self._tick_group(group)
        if self._ticks % self._compactor.policy.every_ticks == 0:
            self._exchange.sweep()
            try:
                self._compactor.run(self._groups.values())
            except StoreFailed as error:
                self.store_failed(error)

    def _tick_group(self, group: Group) -> None:
        try:
            group.core.tick()
        except Exception as error:  # noqa: BLE001 - ends this group, loudly
            self.group_failed(group, error)
            return
        if group.core.has_ready():
            self._rounds.mark(group)

    def _on_frame(self, sender: NodeId, view: memoryview) -> None:
        """Messages of a peer. Raises CodecError, which ends that connection."""
        for group_id, message in decode_frame(view):
            if message.sender != sender or message.to != self.node:
                raise CodecError(f"a message from {message.sender} to {message.to}")
            group = self._groups.get(group_id)
            if group is None or group.stopped is not None or not self._running:
                continue
            if sender not in group.members or message.kind is MessageKind.SNAPSHOT:
                continue  # a snapshot is believed only after its chunks (raft.exchange)
            try:
                group.core.step(message)
            except Exception as error:  # noqa: BLE001 - ends this group, loudly
                self.group_failed(group, error)
            else:
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
        """Nothing can be promised any more: every group falls silent, others elect leaders."""
        if self.failure is not None:
            return
        self.failure = error
        _log.critical("the disk has failed, this node stops acknowledging", exc_info=error)
        for group in self._groups.values():
            if group.stopped is None:
                group.stopped = f"the disk has failed: {error}"
                self._tell_stopped(group)
        if self._on_failure is not None:
            self._on_failure(error)

    def _tell_stopped(self, group: Group) -> None:
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

    def _held(self, group: GroupId) -> Group:
        held = self._groups.get(group)
        if held is None:
            raise UnknownGroup(f"group {group} is not on this node")
        return held
