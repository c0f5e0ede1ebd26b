"""Rounds: what all groups want done, done together.

Owns: which groups have something to do, the write of a round, the one flush in flight, and the
order persist - promise - apply of every Ready.
May not touch: elections, membership, snapshot streams (it only says that one is wanted).
Spec: the Ready contract of raft.ready; DESIGN section 4, steps 5 and 6. One round per turn of the
loop: appends leave for the followers at once, entries of all groups gather in one batch. When no
flush is in flight the batch is written, and flushed on the storage thread; what comes meanwhile
gathers in the next batches, none much larger than a write should hold up the loop. A write never
runs beside a flush: it may have to wait for the disk then, and the loop with it (the slowest
hundredth of writes took 11-15 ms beside flushes, 6-7 ms between them; throughput is the same)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from raft.core.messages import Entry, Message, MessageKind
from raft.core.ready import Ready
from raft.host.group import Group
from raft.host.metrics import Histogram
from raft.store.flush_thread import Flusher
from raft.store.log_store import LogStore
from raft.store.records import StoreBusy, StoreFailed, StoreFull
from raft.store.write_batch import LogBatch
from raft.transport.codec import CONTROL_KINDS, encode_frames
from raft.transport.transport import RAFT_BULK, RAFT_CONTROL, Transport
from raft.types import GroupId, HardState, Index, NodeId, Role, SnapshotMeta, Term

_REFUSED_RETRY_SECONDS: Final = 0.002
_FULL_RETRY_SECONDS: Final = 0.05
_GROUPS_PER_ROUND: Final = 512
_BATCH_BYTES_GOAL: Final = 8 << 20  # a batch is closed once it holds this much
_BATCHES_AHEAD: Final = 2  # before the disk; a group with more to write waits for its turn then


class Supervisor(Protocol):
    """Whom the rounds tell about what is not theirs."""

    def group_failed(self, group: Group, error: Exception) -> None: ...

    def store_failed(self, error: BaseException) -> None: ...

    def install(self, group: Group, meta: SnapshotMeta) -> None: ...

    def snapshot_unused(self, group: Group) -> None: ...

    def stream_snapshot(self, group: Group, to: NodeId) -> None: ...


@dataclass(slots=True)
class _Owed:
    """A Ready whose promises wait for a flush."""

    group: Group
    number: int
    term: Term
    messages: list[Message]


@dataclass(slots=True)
class _Gathering:
    """A batch, and the promises that wait until it is written and flushed."""

    batch: LogBatch = field(default_factory=LogBatch)
    owed: list[_Owed] = field(default_factory=list)
    urgent: bool = False  # some promise of it may not leave before the flush


class Outgoing:
    """The messages of a round, by peer and link."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._control: dict[NodeId, list[tuple[GroupId, Message]]] = {}
        self._bulk: dict[NodeId, list[tuple[GroupId, Message]]] = {}
        self._groups: dict[GroupId, Group] = {}

    def add(self, group: Group, messages: list[Message]) -> None:
        for message in messages:
            box = self._control if message.kind in CONTROL_KINDS else self._bulk
            box.setdefault(message.to, []).append((group.id, message))
        if messages:
            self._groups[group.id] = group

    def send(self) -> None:
        """Lost heartbeats and votes are sent again by their timers; lost appends must be told."""
        for to, messages in self._control.items():
            for frame in encode_frames(messages):
                self._transport.send(to, RAFT_CONTROL, frame, control=True)
        for to, messages in self._bulk.items():
            delivered = True
            for frame in encode_frames(messages):
                delivered = self._transport.send(to, RAFT_BULK, frame) and delivered
            if not delivered:
                for group_id, message in messages:
                    if message.kind is MessageKind.APPEND:
                        self._groups[group_id].core.report_unreachable(to)


class Rounds:
    """Between `open` and `close` it schedules itself on the loop whenever a group is marked."""

    def __init__(self, *, store: LogStore, transport: Transport, supervisor: Supervisor) -> None:
        self.rounds = self.applied_entries = 0
        self.flush_latency = Histogram()
        self.commit_latency = Histogram()
        self._store = store
        self._transport = transport
        self._supervisor = supervisor
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flusher: Flusher | None = None
        self._dirty: dict[GroupId, Group] = {}
        self._scheduled = False
        # Written from the left, one at a time; the rightmost takes what comes.
        self._gatherings = deque([_Gathering()])
        self._in_flight: _Gathering | None = None  # written, waits for the flush under way
        self._flush_began = 0.0
        self._idle = asyncio.Event()  # no flush is under way
        self._idle.set()
        self._retry: asyncio.TimerHandle | None = None  # the database refused the write for now
        self._due: asyncio.TimerHandle | None = None  # the flush of what was promised without one

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._flusher = Flusher(loop, self._store, self._flushed)
        if self._dirty:
            self._schedule(loop)

    async def close(self) -> None:
        """No further rounds; returns when no flush is in flight."""
        self._loop = None
        for timer in (self._retry, self._due):
            if timer is not None:
                timer.cancel()
        await self._idle.wait()
        if self._flusher is not None:
            self._flusher.stop()

    def mark(self, group: Group) -> None:
        """The group may have a Ready: look at it in the next round."""
        self._dirty[group.id] = group
        if not self._scheduled and self._loop is not None:
            self._schedule(self._loop)

    def depths(self) -> tuple[int, int, int]:
        """Groups, batches and promises that wait."""
        owed = sum(len(g.owed) for g in self._unconfirmed())
        batches = sum(bool(g.batch) for g in self._gatherings)
        return len(self._dirty), batches, owed

    def forget(self, group: Group) -> None:
        """The group is gone: nothing of it is written or answered any more."""
        self._dirty.pop(group.id, None)
        for gathering in self._gatherings:
            gathering.batch.forget(group.id)

    def supersede(self, group: GroupId) -> None:
        """The group's log is about to be replaced by a snapshot: entries not yet written, which
        the snapshot covers or contradicts, must not follow it."""
        for gathering in self._gatherings:
            gathering.batch.entries.pop(group, None)

    @property
    def flushing(self) -> bool:
        return not self._idle.is_set()

    def start_over(self) -> None:
        """The store was opened anew: what was not confirmed counts as never written. Only the
        groups with their logs in memory are still there: their terms and votes are written again
        before anything that they promise."""
        fresh = _Gathering()
        for gathering in self._unconfirmed():
            for owed in gathering.owed:
                if owed.group.stopped is None:
                    fresh.owed.append(owed)
                    if owed.group.promised is not None:
                        fresh.batch.put_hard_state(owed.group.id, owed.group.promised)
        self._in_flight = None
        self._gatherings = deque([fresh])
        self._dirty = {g.id: g for g in self._dirty.values() if g.stopped is None}
        for timer in (self._retry, self._due):
            if timer is not None:
                timer.cancel()
        self._retry = self._due = None
        self._advance()

    def _unconfirmed(self) -> list[_Gathering]:
        """Oldest first."""
        written = [] if self._in_flight is None else [self._in_flight]
        return [*written, *self._gatherings]

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = True
        loop.call_soon(self._round)

    # a round

    def _round(self) -> None:
        self._scheduled = False
        if self._loop is None or not self._dirty:
            return
        self.rounds += 1
        dirty = self._take_dirty()
        outgoing = Outgoing(self._transport)
        kept: list[_Owed] = []
        readies: list[tuple[Group, Ready]] = []
        for group in dirty.values():
            ready = self._take(group)
            if ready is None:
                continue
            readies.append((group, ready))
            outgoing.add(group, ready.messages)
            if ready.must_flush:
                owed = _Owed(group, ready.number, ready.term, ready.after_persist)
                if self._gather(group, ready):
                    self._gatherings[-1].owed.append(owed)
                else:
                    kept.append(owed)
        outgoing.send()
        for owed in kept:
            owed.group.unflushed += 1
        self._settle(kept)
        self._advance()
        for group, ready in readies:
            self._act(group, ready)

    def _take_dirty(self) -> dict[GroupId, Group]:
        """Those that were marked first. When there are very many the others wait for the next
        turn, so that ticks and sockets have theirs in between."""
        dirty, self._dirty = self._dirty, {}
        if len(dirty) > _GROUPS_PER_ROUND:
            for group in list(dirty)[_GROUPS_PER_ROUND:]:
                self._dirty[group] = dirty.pop(group)
            if self._loop is not None:
                self._schedule(self._loop)
        return dirty

    def _take(self, group: Group) -> Ready | None:
        if group.stopped is not None:
            return None
        try:
            return group.core.ready() if group.core.has_ready() else None
        except Exception as error:  # noqa: BLE001 - ends this group, loudly
            self._supervisor.group_failed(group, error)
            return None

    def _gather(self, group: Group, ready: Ready) -> bool:
        """What must be durable goes into the batch. Whether a promise must wait for a flush."""
        if not group.persistent and ready.entries:
            group.log.appended(ready.entries)
        if self._gatherings[-1].batch.nbytes >= _BATCH_BYTES_GOAL:
            self._gatherings.append(_Gathering())
        batch = self._gatherings[-1].batch
        if ready.entries and group.persistent:
            batch.put_entries(group.id, ready.entries)
        hard_state = ready.hard_state
        urgent = not group.relaxed
        if hard_state is not None and (group.relaxed or not group.persistent):
            promises = _promises(group, hard_state)
            urgent = promises is not None  # terms and votes are never put off
            hard_state = hard_state if group.persistent else promises
        if hard_state is not None:
            batch.put_hard_state(group.id, hard_state)
        elif not (ready.entries and group.persistent) and not group.unflushed:
            return False
        group.unflushed += 1
        self._gatherings[-1].urgent |= urgent
        return True

    def _act(self, group: Group, ready: Ready) -> None:
        """Everything of a Ready that is for this node's own machine."""
        if group.stopped is not None:
            return
        try:
            self._tell_leader(group, ready)
            if ready.snapshot is not None:
                self._supervisor.install(group, ready.snapshot)
            elif group.arrived is not None:
                self._supervisor.snapshot_unused(group)
            if ready.committed:
                self._apply(group, ready.committed)
            if group.barriers is not None:
                group.barriers.confirmed(ready.reads)
                group.barriers.applied(group.core.applied_index)
        except StoreFailed as error:  # of a machine that writes to the same database
            self._supervisor.store_failed(error)
            return
        except Exception as error:  # noqa: BLE001 - ends this group, loudly
            self._supervisor.group_failed(group, error)
            return
        for to in ready.snapshot_to:
            self._supervisor.stream_snapshot(group, to)
        # A Ready of a leader is bounded. The rest follows at once as long as little waits for the
        # disk, else when this part is flushed: what other groups bring must not wait for all of it.
        if group.core.has_ready() and (ready.committed or len(self._gatherings) < _BATCHES_AHEAD):
            self.mark(group)

    def _tell_leader(self, group: Group, ready: Ready) -> None:
        facts = (ready.leader, ready.term, ready.role is Role.LEADER)
        if facts != group.told:
            group.told = facts
            group.waiting_bytes = 0
            group.sampled = None
            leader, term, ours = facts
            if group.barriers is not None and not ours:
                group.barriers.fail(leader)
            group.machine.leader_changed(leader=leader, term=term, ours=ours)

    def _apply(self, group: Group, committed: list[Entry]) -> None:
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

    # the disk

    def _advance(self) -> None:
        """Write and flush what has gathered, unless a flush is under way or has failed."""
        if self._in_flight is not None or self._retry is not None or self._loop is None:
            return
        gathering = self._gatherings[0]
        if gathering.batch:
            try:
                self._store.write(gathering.batch)
            except StoreBusy as busy:
                full = isinstance(busy, StoreFull)
                delay = _FULL_RETRY_SECONDS if full else _REFUSED_RETRY_SECONDS
                self._retry = self._loop.call_later(delay, self._try_again)
                return
            except StoreFailed as error:
                self._supervisor.store_failed(error)
                return
        elif not gathering.owed:
            return
        self._gatherings.popleft()
        if not self._gatherings:
            self._gatherings.append(_Gathering())
        if not gathering.batch:  # they waited for an earlier flush only, and that is done
            self._settle(gathering.owed)
            return
        interval_s = self._store.flush_interval_s
        if interval_s is None or gathering.urgent:
            self._begin_flush(gathering)
            return
        if self._due is None:
            self._due = self._loop.call_later(interval_s, self._flush_due)
        self._settle(gathering.owed)
        self._advance()

    def _begin_flush(self, written: _Gathering) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        assert self._flusher is not None
        self._in_flight = written
        self._idle.clear()
        self._flush_began = time.monotonic()
        self._flusher.ask()

    def _flush_due(self) -> None:
        self._due = None
        if self._in_flight is None:  # one under way covers all that is written
            self._begin_flush(_Gathering())

    def _try_again(self) -> None:
        self._retry = None
        self._advance()

    def _flushed(self, error: BaseException | None) -> None:
        self._idle.set()
        if error is not None:
            self._supervisor.store_failed(error)
            return
        self.flush_latency.observe(time.monotonic() - self._flush_began)
        durable, self._in_flight = self._in_flight, None
        self._scheduled = True  # what is committed now is applied at once, not a turn later
        if durable is not None:
            self._settle(durable.owed)
        self._advance()
        self._round()

    def _settle(self, durable: list[_Owed]) -> None:
        """Keep the promises whose writes are flushed, in the order they were made."""
        outgoing = Outgoing(self._transport)
        for owed in durable:
            group = owed.group
            group.unflushed -= 1
            if group.stopped is not None:
                continue
            try:
                group.core.persisted(owed.number, term=owed.term)
            except Exception as error:  # noqa: BLE001 - ends this group, loudly
                self._supervisor.group_failed(group, error)
                continue
            outgoing.add(group, owed.messages)
            self.mark(group)
        outgoing.send()


def _promises(group: Group, hard_state: HardState) -> HardState | None:
    """What may never be forgotten, log or no log; None when it is the same as before."""
    promises = replace(hard_state, commit=Index(0))
    if promises == group.promised:
        return None
    group.promised = promises
    return promises
