"""A simulated disk: writes are readable at once, but only flushed ones survive a crash.

Owns: the live image (what a reader sees) and the durable image (what is left after a crash).
May not touch: the core.
Spec: the host's contract: one atomic write per Ready, flushed later, in order. A crash loses the
writes that were not flushed, or keeps a prefix of them; in seeds with a harsh disk a write may be
torn in the middle. Rarely a bit of a flushed entry flips; its checksum shows that on restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from raft.core.log import MemoryReader
from raft.core.messages import Entry
from raft.types import HardState, Index, Members, SnapshotMeta, Term


@dataclass(frozen=True, slots=True)
class MachineState:
    """The replicated state: a hash chain over all applied entries."""

    index: Index
    term: Term
    digest: bytes


EMPTY = MachineState(Index(0), Term(0), b"")


@dataclass(slots=True)
class DiskImage:
    """The content of one disk."""

    hard_state: HardState = field(default_factory=HardState)
    state: MachineState = EMPTY
    log: MemoryReader = field(default_factory=MemoryReader)
    damaged: Index | None = None  # the entry whose checksum does not match

    def copy(self) -> DiskImage:
        log = MemoryReader(self.log.snapshot())
        end = Index(self.log.last_index() + 1)
        entries = self.log.entries(self.log.first_index(), end, 1 << 40)
        if entries:
            log.write(entries)
        return DiskImage(self.hard_state, self.state, log, self.damaged)

    def holds(self, index: Index, term: Term) -> bool:
        """Whether the log or the snapshot contains this entry."""
        return index <= self.log.snapshot().index or self.log.term(index) == term

    def end(self) -> tuple[Term, Index]:
        last = self.log.last_index()
        return self.log.term(last) or Term(0), last


@dataclass(slots=True)
class DiskWrite:
    """One atomic batch, or the part of it that a torn write left."""

    hard_state: HardState | None = None
    entries: Sequence[Entry] = ()
    compact: Index | None = None
    install: MachineState | None = None
    members: Members | None = None  # at the snapshot to install

    def apply_to(self, image: DiskImage) -> None:
        if self.install is not None:
            image.state = self.install
            meta = SnapshotMeta(self.install.index, self.install.term, self.members)
            image.log.install(meta)
        if self.hard_state is not None:
            image.hard_state = self.hard_state
        if self.entries:
            image.log.write(self.entries)
        if self.compact is not None:
            image.log.compact(self.compact)

    def torn(self, rng: Random) -> DiskWrite:
        """The part of this write that reached the disk before a crash."""
        kept = rng.randint(0, len(self.entries))
        return DiskWrite(self.hard_state, self.entries[:kept], None, None)


class SimDisk:
    """Live image, durable image, and the writes that are not flushed yet."""

    def __init__(self) -> None:
        self.live = DiskImage()
        self.durable = DiskImage()
        self.written = 0  # writes ever made; the last len(_pending) of them are not durable
        self._pending: list[DiskWrite] = []

    def write(self, write: DiskWrite) -> None:
        write.apply_to(self.live)
        self._pending.append(write)
        self.written += 1

    def flush_to(self, position: int) -> None:
        """The first `position` writes ever made are now durable."""
        count = position - (self.written - len(self._pending))
        if count > 0:
            for write in self._pending[:count]:
                write.apply_to(self.durable)
            del self._pending[:count]

    def save_state(self, state: MachineState) -> None:
        """A checkpoint of the state machine has reached the disk, independent of the log."""
        for image in (self.durable, self.live):
            if state.index > image.state.index:
                image.state = state

    def crash(self, rng: Random, *, harsh: bool) -> int:
        """Lose what was not flushed, except perhaps a prefix. Returns the number of lost writes."""
        unflushed = len(self._pending)
        kept = rng.randint(0, unflushed) if rng.random() < 0.5 else 0
        self.flush_to(self.written - unflushed + kept)
        if self._pending and harsh and self._pending[0].install is None:
            self._pending[0].torn(rng).apply_to(self.durable)
        self._pending.clear()
        self.live = self.durable.copy()
        return unflushed - kept

    def damage(self, rng: Random) -> Index | None:
        """Flip a bit of a flushed entry while the node is down. Returns None if there is none."""
        log = self.durable.log
        first, last = log.first_index(), log.last_index()
        if last < first or self.durable.damaged is not None:
            return None
        index = Index(rng.randint(first, last))
        entries = log.entries(index, Index(last + 1), 1 << 40)
        whole = entries[0]
        flipped = bytes((b"".join((whole.data, b"?"))[0] ^ 1,)) + whole.data[1:]
        log.write([Entry(index, whole.term, flipped, whole.kind), *entries[1:]])
        self.durable.damaged = index
        self.live = self.durable.copy()
        return index

    def lose_log(self) -> None:
        """Drop the log on purpose; term and vote stay."""
        self._pending.clear()
        self.durable = DiskImage(self.durable.hard_state.after_loss())
        self.live = self.durable.copy()
