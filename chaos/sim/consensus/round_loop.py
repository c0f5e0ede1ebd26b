"""The rounds of a simulated node: the real Rounds over the simulated disk and virtual time.

Owns: when a round runs, how long a flush takes, which writes are refused and which fail.
May not touch: what a round consists of and what waits for a flush (raft/host/rounds.py decides).
Spec: the counterpart of raft/host/round_loop.py. It carries out the same effects in the same order,
but the disk is simulated: a flush takes a drawn time and covers what was written when it began."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from chaos.sim.consensus.disk import DiskWrite, SimDisk
from chaos.sim.consensus.environment import SimEnvironment
from chaos.sim.consensus.schedule import MS
from raft.core.messages import Entry, Message
from raft.core.raft_core import RaftCore
from raft.core.ready import Ready
from raft.host.reads import GroupReads
from raft.host.rounds import Effects, PendingBatch, Rounds
from raft.store.write_batch import LogBatch
from raft.types import GroupId, HardState, Index, NodeId

GROUP = GroupId(1)  # a simulated node has one group
TURN_US = 1500  # a round runs within this time after a group was marked
RETRY_US = 50 * MS  # a refused write is retried within this time


class SimGroup:
    """The group of a node, as Rounds and Quiescence use it. A new one is created when the core
    restarts."""

    __slots__ = (
        "_disk",
        "core",
        "id",
        "idle_at",
        "idle_ticks",
        "persistent",
        "promised",
        "reads",
        "relaxed",
        "stopped",
        "unflushed",
    )

    def __init__(self, core: RaftCore, disk: SimDisk, *, persistent: bool, relaxed: bool) -> None:
        self.id = GROUP
        self.core = core
        self.reads = GroupReads(core)
        self.persistent = persistent
        self.relaxed = relaxed
        self.stopped: str | None = None
        self.promised: HardState | None = None
        self.unflushed = 0
        self.idle_at = Index(0)
        self.idle_ticks = 0
        self._disk = disk

    @property
    def log(self) -> SimGroup:
        return self

    def appended(self, entries: Sequence[Entry]) -> None:
        """Entries of a log that is in memory only."""
        self._disk.change_memory(DiskWrite(entries=entries))


class RoundsNode(Protocol):
    """The node, as far as its rounds use it."""

    @property
    def id(self) -> NodeId: ...

    def after(self, delay_us: int, action: Callable[..., None], *arguments: object) -> None:
        """Run the action then, unless the node has stopped or started again by that time."""

    def took_ready(self, ready: Ready) -> None: ...

    def observe(self) -> None:
        """The core has changed: check it before anything is sent."""

    def send(self, message: Message) -> None: ...

    def apply(self, ready: Ready) -> None: ...

    def flush_ended(self) -> None: ...

    def disk_failed(self) -> None: ...

    def count(self, event: str) -> None: ...


class SimRoundLoop:
    """Lives as long as the simulated process: longer than a group when the disk fails."""

    def __init__(
        self,
        rounds: Rounds[SimGroup],
        node: RoundsNode,
        disk: SimDisk,
        environment: SimEnvironment,
        rng: Random,
    ) -> None:
        self._rounds = rounds
        self._node = node
        self._disk = disk
        self._environment = environment
        self._rng = rng
        self._scheduled = False
        # A timer with a number other than the current one was canceled.
        self._retry_timer = 0
        self._due_timer = 0
        self._flush_due = False  # a timer runs for a postponed flush
        self._batches_unflushed = 0  # written since the last flush began

    def mark(self, group: SimGroup) -> None:
        """The group may have a Ready: check it in the next round."""
        self._rounds.mark(group)
        self._schedule()

    def supersede(self) -> None:
        """The log is about to be replaced by a snapshot (Rounds.supersede)."""
        if self._rounds.depths()[1]:
            self._node.count("superseded batches")
        self._rounds.supersede(GROUP)

    def restart(self, gone: SimGroup | None) -> None:
        """The disk works again after a failure. `gone` is the group that it stopped, if any."""
        if gone is not None:
            self._rounds.forget(gone)
            self._scheduled = False  # a round that was scheduled for it will not run
        self._retry_timer += 1
        self._cancel_due()
        self._batches_unflushed = 0
        self._carry_out(self._rounds.restart())
        self._schedule()

    def _cancel_due(self) -> None:
        self._due_timer += 1
        self._flush_due = False

    def _schedule(self) -> None:
        if self._rounds.marked and not self._scheduled:
            self._scheduled = True
            self._node.after(self._rng.randrange(1, TURN_US), self._round)

    def _round(self) -> None:
        self._scheduled = False
        if self._rounds.marked:
            self._begin()
        self._schedule()

    def _begin(self) -> None:
        effects = self._rounds.begin()
        for _, ready in effects.apply:
            self._node.took_ready(ready)
        self._carry_out(effects)

    def _carry_out(self, effects: Effects[SimGroup]) -> None:
        readies = effects.apply
        following: Effects[SimGroup] | None = effects
        while following is not None:
            effects, following = following, None
            for _, error in effects.failed:
                raise error
            self._node.observe()
            for _, messages in effects.send:
                for message in messages:
                    self._node.send(message)
            if effects.flush is not None:
                self._begin_flush(effects.flush)
            if effects.flush_later:
                self._flush_in_time()
            if effects.write is not None:
                following = self._write(effects.write)
        for group, ready in readies:
            if group.stopped is None:
                self._node.apply(ready)
                self._rounds.applied(group, ready)

    # -- the disk

    def _write(self, batch: PendingBatch[SimGroup]) -> Effects[SimGroup] | None:
        node, rng, environment = self._node, self._rng, self._environment
        changes = batch.changes
        text = written_text(batch.number, changes) if environment.tracing else ""
        write = DiskWrite(changes.hard_states.get(GROUP), changes.entries.get(GROUP, ()))
        trouble = self._disk.trouble
        # Otherwise the flush of this batch fails.
        if trouble.fails_next and rng.random() < 0.5:
            self._write_part(write)
            self._failed("write")
            return None
        if environment.schedule.now_us < trouble.full_until_us or (
            not environment.calm and rng.random() < environment.faults.refuse
        ):
            self._write_part(write)
            environment.trace(node.id, "is refused", text)
            node.count("refused writes")
            self._rounds.refused(batch.number)
            node.after(rng.randint(1, RETRY_US), self._retry_write, self._retry_timer)
            return None
        self._disk.write(write)
        environment.trace(node.id, "writes", text)
        if len(batch.promises) > 1:
            node.count("shared batches")
        self._batches_unflushed += 1
        return self._rounds.written(batch.number)

    def _write_part(self, write: DiskWrite) -> None:
        """A large batch is written in several pieces, and the first ones may have succeeded."""
        if self._rng.random() < 0.5:
            self._disk.write(write.torn(self._rng))

    def _retry_write(self, timer: int) -> None:
        if timer == self._retry_timer:
            self._carry_out(self._rounds.retry_write())
            self._schedule()

    def _begin_flush(self, number: int) -> None:
        self._cancel_due()
        if self._batches_unflushed > 1:
            self._node.count("shared flushes")
        self._batches_unflushed = 0
        environment, rng = self._environment, self._rng
        faults, trouble = environment.faults, self._disk.trouble
        delay = rng.randint(1, faults.flush_us)
        if trouble.slow or (not environment.calm and rng.random() < faults.slow_flush):
            delay += rng.randrange(faults.slow_flush_us)
        delay += max(0, trouble.stalled_until_us - environment.schedule.now_us)
        self._node.after(delay, self._flushed, number, self._disk.written)

    def _flushed(self, number: int, position: int) -> None:
        if self._disk.trouble.fails_next:
            self._failed("flush")
            return
        self._disk.flush_to(position)
        self._node.flush_ended()
        self._carry_out(self._rounds.flushed(number))
        if self._rounds.marked:
            self._begin()  # apply what is committed now
        self._schedule()

    def _flush_in_time(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            interval_us = self._environment.faults.flush_interval_us
            self._node.after(interval_us, self._flush_overdue, self._due_timer)

    def _flush_overdue(self, timer: int) -> None:
        if timer == self._due_timer:
            self._flush_due = False
            self._carry_out(self._rounds.flush_overdue())

    def _failed(self, what: str) -> None:
        self._disk.trouble.fails_next = False
        self._environment.trace(self._node.id, "disk fails", f"in a {what}")
        self._rounds.disk_failed()
        self._node.disk_failed()


def written_text(number: int, changes: LogBatch) -> str:
    """A batch in the trace."""
    parts = [f"batch {number}"]
    hard = changes.hard_states.get(GROUP)
    if hard is not None:
        parts.append(f"term {hard.term} vote {hard.vote} commit {hard.commit}")
    entries = changes.entries.get(GROUP)
    if entries:
        first, last = entries[0], entries[-1]
        parts.append(f"entries {first.index}..{last.index} of term {first.term}..{last.term}")
    return " ".join(parts)
