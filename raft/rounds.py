"""Rounds: what all groups want done, done together.

Owns: which groups have something to do, the write of a round, the one flush in flight, and the
order persist - promise - apply of every Ready.
May not touch: elections, membership, snapshot streams (it only says that one is wanted).
Spec: the Ready contract of raft.ready; DESIGN section 4, steps 5 and 6. One round per turn of the
loop: entries of all groups go into one write, their appends leave for the followers at once,
and one flush on the storage thread covers everything written before it began. What is written
while a flush runs waits for the next one."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, Protocol

from raft.codec import CONTROL_KINDS, encode_frames
from raft.group import Group
from raft.messages import Entry, Message, MessageKind
from raft.ready import Ready
from raft.records import StoreBusy, StoreFailed
from raft.store import Batch, LogStore
from raft.transport import RAFT_BULK, RAFT_CONTROL, Transport
from raft.types import GroupId, NodeId, Role, SnapshotMeta, Term

_REFUSED_RETRY_SECONDS: Final = 0.002


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
    flush_number: int
    number: int
    term: Term
    messages: list[Message]


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
        self.rounds = self.applied_entries = self.flushes = 0
        self.flush_seconds_total = self.flush_seconds_max = 0.0
        self._store = store
        self._transport = transport
        self._supervisor = supervisor
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Executor | None = None
        self._dirty: dict[GroupId, Group] = {}
        self._scheduled = False
        self._refused: tuple[Batch, list[_Owed]] | None = None
        self._owed: deque[_Owed] = deque()
        # The flush under way, or the last one, is `_flush_started`; writes made now are covered
        # by the one after it.
        self._flush_started = self._flush_done = 0
        self._flush: asyncio.Future[None] | None = None

    def open(self, loop: asyncio.AbstractEventLoop, thread: Executor) -> None:
        self._loop, self._thread = loop, thread
        if self._dirty:
            self._schedule(loop)

    async def close(self) -> None:
        """No further rounds; returns when no flush is in flight."""
        self._loop = None
        if self._flush is not None:
            await asyncio.wait([self._flush])

    def mark(self, group: Group) -> None:
        """The group may have a Ready: look at it in the next round."""
        self._dirty[group.id] = group
        if not self._scheduled and self._loop is not None:
            self._schedule(self._loop)

    def forget(self, group: Group) -> None:
        """The group is gone: nothing of it is written or answered any more."""
        self._dirty.pop(group.id, None)
        if self._refused is not None:
            self._refused[0].forget(group.id)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = True
        loop.call_soon(self._round)

    # a round

    def _round(self) -> None:
        self._scheduled = False
        if self._loop is None or self._refused is not None:
            return
        self.rounds += 1
        dirty, self._dirty = self._dirty, {}
        batch = self._store.begin()
        outgoing = Outgoing(self._transport)
        owed: list[_Owed] = []
        readies: list[tuple[Group, Ready]] = []
        for group in dirty.values():
            ready = self._take(group)
            if ready is None:
                continue
            readies.append((group, ready))
            outgoing.add(group, ready.messages)
            self._collect(group, ready, batch, owed)
        outgoing.send()
        self._write(batch, owed)
        for group, ready in readies:
            self._act(group, ready)

    def _take(self, group: Group) -> Ready | None:
        if group.stopped is not None:
            return None
        try:
            return group.core.ready() if group.core.has_ready() else None
        except Exception as error:  # noqa: BLE001 - ends this group, loudly
            self._supervisor.group_failed(group, error)
            return None

    def _collect(self, group: Group, ready: Ready, batch: Batch, owed: list[_Owed]) -> None:
        """What must be durable goes into the batch, what waits for it is remembered."""
        if group.persistent:
            if ready.entries:
                self._store.put_entries(batch, group.id, ready.entries)
            if ready.hard_state is not None:
                self._store.put_hard_state(batch, group.id, ready.hard_state)
            if ready.entries or ready.hard_state is not None:
                group.flush_number = self._flush_started + 1
        elif ready.entries:
            group.log.appended(ready.entries)
        if ready.must_flush:
            owed.append(
                _Owed(group, group.flush_number, ready.number, ready.term, ready.after_persist)
            )

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
        except Exception as error:  # noqa: BLE001 - ends this group, loudly
            self._supervisor.group_failed(group, error)
            return
        for to in ready.snapshot_to:
            self._supervisor.stream_snapshot(group, to)

    def _tell_leader(self, group: Group, ready: Ready) -> None:
        facts = (ready.leader, ready.term, ready.role is Role.LEADER)
        if facts != group.told:
            group.told = facts
            group.waiting_bytes = 0
            leader, term, ours = facts
            group.machine.leader_changed(leader=leader, term=term, ours=ours)

    def _apply(self, group: Group, committed: list[Entry]) -> None:
        group.machine.apply(committed)
        self.applied_entries += len(committed)
        if group.waiting_bytes:
            size = sum(len(entry.data) for entry in committed)
            group.waiting_bytes = max(0, group.waiting_bytes - size)
        group.core.applied(committed[-1].index)
        if group.core.has_ready():
            self.mark(group)

    # the disk

    def _write(self, batch: Batch, owed: list[_Owed]) -> None:
        if batch:
            try:
                self._store.write(batch)
            except StoreBusy:
                self._refused = (batch, owed)
                if self._loop is not None:
                    self._loop.call_later(_REFUSED_RETRY_SECONDS, self._write_again)
                return
            except StoreFailed as error:
                self._supervisor.store_failed(error)
                return
        self._owed.extend(owed)
        self._settle()
        self._start_flush()

    def _write_again(self) -> None:
        if self._loop is None or self._refused is None:
            return
        (batch, owed), self._refused = self._refused, None
        for one in owed:  # a flush may have begun since: only the next one covers this write
            one.flush_number = one.group.flush_number = self._flush_started + 1
        self._write(batch, owed)
        if self._dirty and not self._scheduled and self._loop is not None:
            self._schedule(self._loop)

    def _start_flush(self) -> None:
        if self._flush is not None or not self._owed or self._loop is None:
            return
        assert self._thread is not None
        self._flush_started += 1
        began = time.monotonic()
        flush = self._loop.run_in_executor(self._thread, self._store.flush)
        self._flush = flush
        flush.add_done_callback(lambda done: self._flushed(done, began))

    def _flushed(self, flush: asyncio.Future[None], began: float) -> None:
        self._flush = None
        error = flush.exception()
        if error is not None:
            self._supervisor.store_failed(error)
            return
        seconds = time.monotonic() - began
        self.flushes += 1
        self.flush_seconds_total += seconds
        self.flush_seconds_max = max(self.flush_seconds_max, seconds)
        self._flush_done = self._flush_started
        self._settle()
        self._start_flush()

    def _settle(self) -> None:
        """Keep the promises whose writes are flushed, in the order they were made."""
        done = self._flush_done
        waiting: deque[_Owed] = deque()
        outgoing = Outgoing(self._transport)
        for one in self._owed:
            group = one.group
            if group.persistent and one.flush_number > done:
                waiting.append(one)
            elif group.stopped is None:
                try:
                    group.core.persisted(one.number, term=one.term)
                except Exception as error:  # noqa: BLE001 - ends this group, loudly
                    self._supervisor.group_failed(group, error)
                    continue
                outgoing.add(group, one.messages)
                self.mark(group)
        self._owed = waiting
        outgoing.send()
