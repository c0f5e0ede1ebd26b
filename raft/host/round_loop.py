"""The rounds of a node on its event loop: writes on the loop, flushes on the flush thread.

Owns: when a round runs, the timers for refused writes and postponed flushes, sending the messages
of a round.
May not touch: what a round consists of (raft/host/rounds.py decides), elections, membership.
Spec: one round per turn of the event loop. Writes run on the loop (they take microseconds); the
flush (fsync) releases the GIL and runs on the thread of raft/store/flush_thread.py, which calls
back here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from raft.core.messages import Message, MessageKind
from raft.core.ready import Ready
from raft.host.group import Group
from raft.host.latency import Histogram
from raft.host.rounds import Effects, PendingBatch, Rounds
from raft.store.flush_thread import FlushThread
from raft.store.log_store import LogStore
from raft.store.records import StoreBusy, StoreFailed, StoreFull
from raft.transport.codec import CONTROL_KINDS, encode_frames
from raft.transport.transport import RAFT_BULK, RAFT_CONTROL, Transport
from raft.types import GroupId, NodeId

_REFUSED_RETRY_SECONDS: Final = 0.002
_FULL_RETRY_SECONDS: Final = 0.05


class RoundLoop:
    """Between `open` and `close` it schedules a round on the loop whenever a group is marked."""

    def __init__(
        self,
        *,
        store: LogStore,
        transport: Transport,
        apply: Callable[[Group, Ready], bool],
        group_failed: Callable[[Group, Exception], None],
        store_failed: Callable[[BaseException], None],
        flush_thread: Callable[..., FlushThread] = FlushThread,
    ) -> None:
        """`apply` returns whether the group keeps running."""
        self.flush_latency = Histogram()
        self._rounds: Rounds[Group] = Rounds()
        self._store = store
        self._transport = transport
        self._apply = apply
        self._group_failed = group_failed
        self._store_failed = store_failed
        self._flush_thread = flush_thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flusher: FlushThread | None = None
        self._scheduled = False
        self._flushing = 0  # the number of the flush in flight; 0: none
        self._flush_began = 0.0
        self._idle = asyncio.Event()  # no flush is in flight
        self._idle.set()
        self._held: list[Callable[[], None]] = []  # to be called when the flush in flight ends
        self._retry: asyncio.TimerHandle | None = None  # retries a write that the store refused
        self._due: asyncio.TimerHandle | None = None  # postponed flush of relaxed promises

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._flusher = self._flush_thread(loop, self._store, self._flushed)
        self._schedule()

    async def close(self) -> None:
        """No further rounds; returns when no flush is in flight."""
        self._loop = None
        self._cancel_timers()
        await self._idle.wait()
        if self._flusher is not None:
            self._flusher.stop()

    @property
    def count(self) -> int:
        return self._rounds.count

    @property
    def flushing(self) -> bool:
        return self._flushing > 0

    def depths(self) -> tuple[int, int, int]:
        """Groups, batches and promises that wait."""
        return self._rounds.depths()

    def mark(self, group: Group) -> None:
        """The group may have a Ready: check it in the next round."""
        self._rounds.mark(group)
        if not self._scheduled:
            self._schedule()

    def together(self, work: Callable[[], None]) -> None:
        """Call `work` when no flush is in flight, then run a round immediately for the groups that
        it marked. Proposing earlier would gain nothing: the entries would wait for that flush."""
        if self._flushing:
            self._held.append(work)
        elif self._scheduled:
            work()  # a round is already scheduled
        else:
            self._together([work])

    def _together(self, works: list[Callable[[], None]]) -> None:
        self._scheduled = True
        try:
            for work in works:
                work()
        finally:
            self._round()

    def forget(self, group: Group) -> None:
        """The group was removed: write and answer nothing more for it."""
        self._rounds.forget(group)

    def supersede(self, group: GroupId) -> None:
        """The group's log is about to be replaced by a snapshot (Rounds.supersede)."""
        self._rounds.supersede(group)

    def restart(self) -> None:
        """The store was opened again after a failure (Rounds.restart)."""
        self._cancel_timers()
        self._carry_out(self._rounds.restart())
        self._schedule()

    def _cancel_timers(self) -> None:
        for timer in (self._retry, self._due):
            if timer is not None:
                timer.cancel()
        self._retry = self._due = None

    def _schedule(self) -> None:
        if self._loop is not None and self._rounds.marked and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        self._scheduled = False
        if self._loop is None or not self._rounds.marked:
            return
        self._carry_out(self._rounds.begin())
        self._schedule()

    def _carry_out(self, effects: Effects[Group]) -> None:
        readies = effects.apply
        following: Effects[Group] | None = effects
        while following is not None:
            effects, following = following, None
            for group, error in effects.failed:
                self._group_failed(group, error)
            if effects.send:
                send_messages(self._transport, effects.send)
            if effects.flush is not None:
                self._begin_flush(effects.flush)
            if effects.flush_later:
                self._flush_in_time()
            if effects.write is not None:
                following = self._write(effects.write)
        for group, ready in readies:
            if self._apply(group, ready):
                self._rounds.applied(group, ready)

    # the disk

    def _write(self, batch: PendingBatch[Group]) -> Effects[Group] | None:
        if self._loop is None:
            return None
        try:
            self._store.write(batch.changes)
        except StoreBusy as busy:
            self._rounds.refused(batch.number)
            full = isinstance(busy, StoreFull)
            delay = _FULL_RETRY_SECONDS if full else _REFUSED_RETRY_SECONDS
            self._retry = self._loop.call_later(delay, self._retry_write)
            return None
        except StoreFailed as error:
            self._rounds.disk_failed()
            self._store_failed(error)
            return None
        return self._rounds.written(batch.number)

    def _retry_write(self) -> None:
        self._retry = None
        self._carry_out(self._rounds.retry_write())
        self._schedule()

    def _begin_flush(self, number: int) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        assert self._flusher is not None
        self._flushing = number
        self._idle.clear()
        self._flush_began = time.monotonic()
        self._flusher.request()

    def _flushed(self, error: BaseException | None) -> None:
        """Called on the loop by the flush thread."""
        number, self._flushing = self._flushing, 0
        self._idle.set()
        held, self._held = self._held, []
        if error is not None:
            self._rounds.disk_failed()
            self._store_failed(error)
            self._together(held)
            return
        self.flush_latency.observe(time.monotonic() - self._flush_began)
        try:
            if held:  # their entries become part of the write that follows
                self._together(held)
        finally:
            self._end_flush(number)

    def _end_flush(self, number: int) -> None:
        self._carry_out(self._rounds.flushed(number))
        if self._loop is not None and self._rounds.marked:
            # Apply what is committed now, not one turn of the loop later.
            self._carry_out(self._rounds.begin())
        self._schedule()

    def _flush_in_time(self) -> None:
        interval_s = self._store.flush_interval_s
        if self._due is None and self._loop is not None and interval_s is not None:
            self._due = self._loop.call_later(interval_s, self._flush_due)

    def _flush_due(self) -> None:
        self._due = None
        self._carry_out(self._rounds.flush_overdue())


def send_messages(transport: Transport, sends: list[tuple[Group, list[Message]]]) -> None:
    """Send the messages in one frame per peer and link, or more if they exceed the size of a frame.
    The core repeats a lost heartbeat or vote by its timer; a lost append must be reported to it."""
    control: dict[NodeId, list[tuple[GroupId, Message]]] = {}
    bulk: dict[NodeId, list[tuple[GroupId, Message]]] = {}
    groups: dict[GroupId, Group] = {}
    for group, messages in sends:
        groups[group.id] = group
        for message in messages:
            box = control if message.kind in CONTROL_KINDS else bulk
            box.setdefault(message.to, []).append((group.id, message))
    for to, boxed in control.items():
        for frame in encode_frames(boxed):
            transport.send(to, RAFT_CONTROL, frame, control=True)
    for to, boxed in bulk.items():
        delivered = True
        for frame in encode_frames(boxed):
            delivered = transport.send(to, RAFT_BULK, frame) and delivered
        if not delivered:
            for group_id, message in boxed:
                if message.kind is MessageKind.APPEND:
                    groups[group_id].core.report_unreachable(to)
