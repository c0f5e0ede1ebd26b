"""Rounds: the work of all groups of a node, collected into one write and one flush. Pure core.

Owns: which groups have something to do, the batches that wait to be written, the promises that
wait for a flush, and the order write, flush, promise, apply.
May not touch: the event loop, threads, clocks, files, sockets, state machines. It takes inputs and
returns Effects; raft/host/round_loop.py carries them out with a real disk.
Spec: Ready in raft/core/ready.py. A vote and an answer to an append are promises: they leave only
after the flush of the batch that holds what they promise. Appends to followers promise nothing and
leave immediately. The changes of all groups are collected in one batch, so one flush serves them
all.
At most one batch is being written or flushed; what arrives meanwhile is collected in the next
batches. A write never runs beside a flush: it might have to wait for the disk, and the event loop
with it (measured: the slowest hundredth of writes took 11-15 ms beside flushes, 6-7 ms between
them, at the same throughput).

Inputs and the effects they may return:

    mark(group)                none; the group takes part in the next round
    begin()                    apply, send, write
    written(number)            flush, or send, flush_later and the next write
    refused(number)            none; the store cannot accept the write now
    retry_write()              write; some time after that
    flushed(number)            send, write
    flush_overdue()            flush; when the time that flush_later allows has passed
    disk_failed(), restart()   nothing is written between these two"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, Protocol, TypeVar

from raft.core.messages import Entry, Message
from raft.core.ready import Ready
from raft.store.write_batch import LogBatch
from raft.types import GroupId, HardState, Index, InvariantViolation, Term

GROUPS_PER_ROUND: Final = 512  # the others wait for the next round
BATCH_BYTES_GOAL: Final = 8 << 20  # a batch is closed once it holds this much
BATCHES_AHEAD: Final = 2  # if more wait for the disk, a group's next Ready waits for a flush


class ReadyCore(Protocol):
    """RaftCore, as far as rounds use it."""

    def has_ready(self) -> bool: ...

    def ready(self) -> Ready: ...

    def persisted(self, number: int, *, term: Term) -> None: ...


class EntryLog(Protocol):
    """The log of a group whose entries are kept in memory only."""

    def appended(self, entries: Sequence[Entry]) -> None: ...


class RoundGroup(Protocol):
    """A group, as far as rounds use it."""

    promised: HardState | None  # last handed to the disk, if relaxed or not persistent
    unflushed: int  # Readies whose promises wait for a flush

    @property
    def id(self) -> GroupId: ...

    @property
    def core(self) -> ReadyCore: ...

    @property
    def log(self) -> EntryLog: ...

    @property
    def persistent(self) -> bool: ...

    @property
    def relaxed(self) -> bool:
        """Whether its entries may be promised once they are written, before their flush."""

    @property
    def stopped(self) -> str | None: ...


G = TypeVar("G", bound=RoundGroup)


@dataclass(slots=True)
class Promise(Generic[G]):
    """A Ready that must be reported as persisted, and the messages that may leave then."""

    group: G
    number: int
    term: Term
    messages: list[Message]


@dataclass(slots=True)
class PendingBatch(Generic[G]):
    """Changes to write together, and the promises that depend on them."""

    changes: LogBatch = field(default_factory=LogBatch)
    promises: list[Promise[G]] = field(default_factory=list)
    must_flush: bool = False  # one of the promises may not leave before the flush
    number: int = 0  # counts up in the order of writes and flushes; 0: not handed out yet


@dataclass(slots=True)
class Effects(Generic[G]):
    """What the caller has to do, in the order of the fields."""

    # These groups broke an invariant and must be stopped.
    failed: list[tuple[G, Exception]] = field(default_factory=list)
    send: list[tuple[G, list[Message]]] = field(default_factory=list)
    flush: int | None = None  # flush what is written, then call flushed(number)
    flush_later: bool = False  # some of what was promised is not flushed yet: flush it in time
    write: PendingBatch[G] | None = None  # write its changes, then call written(number)
    # Apply each Ready to the group's state machine, then call applied(group, ready).
    apply: list[tuple[G, Ready]] = field(default_factory=list)


class Rounds(Generic[G]):
    def __init__(self) -> None:
        self.count = 0
        self._marked: dict[GroupId, G] = {}
        # Written from the left, one at a time; the rightmost collects what groups bring.
        self._batches: deque[PendingBatch[G]] = deque([PendingBatch()])
        self._handed_out = False  # the leftmost batch is being written
        self._refused = False  # its write was refused, and is to be retried
        self._in_flight: PendingBatch[G] | None = None  # written, waits for its flush
        self._disk_failed = False
        self._last_number = 0

    # groups

    def mark(self, group: G) -> None:
        """The group may have a Ready: check it in the next round."""
        self._marked[group.id] = group

    @property
    def marked(self) -> int:
        return len(self._marked)

    def forget(self, group: G) -> None:
        """The group was removed: write and answer nothing more for it."""
        self._marked.pop(group.id, None)
        for batch in self._batches:
            batch.changes.forget(group.id)

    def supersede(self, group: GroupId) -> None:
        """The group's log is about to be replaced by a snapshot. Entries that are not written yet
        are covered by it or contradict it, so they must not be written after it."""
        for batch in self._batches:
            batch.changes.entries.pop(group, None)

    def depths(self) -> tuple[int, int, int]:
        """Groups, batches and promises that wait."""
        promises = sum(len(batch.promises) for batch in self._unconfirmed())
        return len(self._marked), sum(bool(b.changes) for b in self._batches), promises

    # a round

    def begin(self) -> Effects[G]:
        """Take the Ready of every marked group."""
        self.count += 1
        effects: Effects[G] = Effects()
        kept: list[Promise[G]] = []  # promises that need no write and no flush
        for group in self._take_marked():
            if group.stopped is not None:
                continue
            try:
                if not group.core.has_ready():
                    continue
                ready = group.core.ready()
            except Exception as error:  # noqa: BLE001 - stops this group
                effects.failed.append((group, error))
                continue
            effects.apply.append((group, ready))
            if ready.messages:
                effects.send.append((group, ready.messages))
            if ready.entries or ready.after_persist or ready.hard_state is not None:
                promise = Promise(group, ready.number, ready.term, ready.after_persist)
                promises = self._batches[-1].promises if self._collect(group, ready) else kept
                promises.append(promise)
                group.unflushed += 1
        self._release(kept, effects)
        self._hand_out(effects)
        return effects

    def applied(self, group: G, ready: Ready) -> None:
        """The Ready has been applied. A Ready of a leader is bounded: its next Ready is taken in
        the next round while few batches wait for the disk, otherwise after the next flush, so that
        other groups do not wait until this one has written everything."""
        more = ready.committed or len(self._batches) < BATCHES_AHEAD
        if more and group.core.has_ready():
            self._marked[group.id] = group

    def _take_marked(self) -> Iterable[G]:
        """The groups that were marked first. A round is bounded, so that ticks and sockets get
        their turn in between."""
        marked, self._marked = self._marked, {}
        if len(marked) > GROUPS_PER_ROUND:
            for group in list(marked)[GROUPS_PER_ROUND:]:
                self._marked[group] = marked.pop(group)
        return marked.values()

    def _collect(self, group: G, ready: Ready) -> bool:
        """Put what must be durable into the rightmost batch. Returns whether the promises of this
        Ready depend on that batch or on an earlier one."""
        if not group.persistent and ready.entries:
            group.log.appended(ready.entries)
        being_written = self._handed_out and len(self._batches) == 1
        if being_written or self._batches[-1].changes.nbytes >= BATCH_BYTES_GOAL:
            self._batches.append(PendingBatch())
        batch = self._batches[-1]
        stored = bool(ready.entries) and group.persistent
        if stored:
            batch.changes.put_entries(group.id, ready.entries)
        hard_state = ready.hard_state
        must_flush = not group.relaxed
        if hard_state is not None and (group.relaxed or not group.persistent):
            changed = _changed_promises(group, hard_state)
            must_flush = changed is not None  # terms and votes always wait for their flush
            hard_state = hard_state if group.persistent else changed
        if hard_state is not None:
            batch.changes.put_hard_state(group.id, hard_state)
        elif not stored and not group.unflushed:
            return False
        batch.must_flush |= must_flush
        return True

    # the disk

    def written(self, number: int) -> Effects[G]:
        """The batch that was handed out is written, not flushed."""
        batch = self._take_back(number)
        self._drop_first()
        effects: Effects[G] = Effects()
        if batch.must_flush:
            self._in_flight = batch
            effects.flush = number
        else:
            effects.flush_later = True
            self._release(batch.promises, effects)
            self._hand_out(effects)
        return effects

    def refused(self, number: int) -> None:
        """The store cannot accept the write now. Changes made meanwhile join the batch."""
        self._take_back(number)
        self._refused = True

    def retry_write(self) -> Effects[G]:
        """Hand the refused batch out again."""
        self._refused = False
        effects: Effects[G] = Effects()
        self._hand_out(effects)
        return effects

    def flushed(self, number: int) -> Effects[G]:
        """Everything written before the flush is on disk: its promises may leave."""
        batch = self._in_flight
        if batch is None or batch.number != number:
            raise InvariantViolation(f"batch {number} is not being flushed")
        self._in_flight = None
        effects: Effects[G] = Effects()
        self._release(batch.promises, effects)
        self._hand_out(effects)
        return effects

    def flush_overdue(self) -> Effects[G]:
        """The time allowed for promises made before their flush is over. A flush already in flight
        covers them."""
        effects: Effects[G] = Effects()
        if self._in_flight is None and not self._disk_failed:
            self._last_number += 1
            self._in_flight = PendingBatch(number=self._last_number)
            effects.flush = self._last_number
        return effects

    def disk_failed(self) -> None:
        """A write or a flush has failed. It is unknown what is on the disk: no promise leaves, and
        nothing is written until `restart`."""
        self._disk_failed = True

    def restart(self) -> Effects[G]:
        """The store was opened again: what was not confirmed counts as never written. Of the
        groups, only those with their logs in memory are still running. Their terms and votes are
        written and flushed again before any of their promises leave."""
        fresh: PendingBatch[G] = PendingBatch()
        for batch in self._unconfirmed():
            for promise in batch.promises:
                group = promise.group
                if group.stopped is None:
                    fresh.promises.append(promise)
                    if group.promised is not None:
                        fresh.changes.put_hard_state(group.id, group.promised)
                        fresh.must_flush = True
        self._batches = deque([fresh])
        self._in_flight = None
        self._handed_out = self._refused = self._disk_failed = False
        self._marked = {g.id: g for g in self._marked.values() if g.stopped is None}
        effects: Effects[G] = Effects()
        self._hand_out(effects)
        return effects

    def _take_back(self, number: int) -> PendingBatch[G]:
        batch = self._batches[0]
        if not self._handed_out or batch.number != number:
            raise InvariantViolation(f"batch {number} is not being written")
        self._handed_out = False
        return batch

    def _unconfirmed(self) -> list[PendingBatch[G]]:
        """Oldest first."""
        return [*([] if self._in_flight is None else [self._in_flight]), *self._batches]

    def _hand_out(self, effects: Effects[G]) -> None:
        """The oldest batch is to be written next, unless one is being written or flushed."""
        while not (self._in_flight or self._handed_out or self._refused or self._disk_failed):
            batch = self._batches[0]
            if batch.changes:
                self._last_number += 1
                batch.number = self._last_number
                self._handed_out = True
                effects.write = batch
                return
            if not batch.promises and len(self._batches) == 1:
                return
            # Its promises waited only for earlier flushes, and those are done.
            self._drop_first()
            self._release(batch.promises, effects)

    def _drop_first(self) -> None:
        self._batches.popleft()
        if not self._batches:
            self._batches.append(PendingBatch())

    def _release(self, promises: list[Promise[G]], effects: Effects[G]) -> None:
        """What these promises depend on is durable: report it to the cores, and let the messages
        leave in the order in which they were made."""
        for promise in promises:
            group = promise.group
            group.unflushed -= 1
            if group.stopped is not None or (effects.failed and _has_failed(group, effects)):
                continue
            try:
                group.core.persisted(promise.number, term=promise.term)
            except Exception as error:  # noqa: BLE001 - stops this group
                effects.failed.append((group, error))
                continue
            if promise.messages:
                effects.send.append((group, promise.messages))
            self._marked[group.id] = group


def _has_failed(group: G, effects: Effects[G]) -> bool:
    return any(group is failed for failed, _ in effects.failed)


def _changed_promises(group: RoundGroup, hard_state: HardState) -> HardState | None:
    """Term and vote, if they have changed; None if not. They must never be forgotten, with or
    without a log. The commit index promises nothing."""
    promises = replace(hard_state, commit=Index(0))
    if promises == group.promised:
        return None
    group.promised = promises
    return promises
