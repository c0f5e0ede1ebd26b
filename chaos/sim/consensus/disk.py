"""A simulated disk: writes are readable immediately, but only flushed ones survive a crash.

Owns: the live image (what a reader sees), the durable image (what a power failure leaves), and the
current faults of the disk.
May not touch: the core, the rounds.
Spec: the contract of raft/store/log_store.py: batches are written in order and flushed later. A
power failure loses the writes that were not flushed, or keeps a prefix of them; in seeds with a
harsh disk a write may be torn in the middle. After a failed flush it is unknown what is on the
disk, so it counts as a power failure. Rarely a bit of a flushed entry flips; its checksum detects
that at the restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
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

    def with_entry(self, entry: Entry) -> MachineState:
        """The next link of the chain."""
        text = b"%d/%d/%d/" % (entry.index, entry.term, entry.kind)
        digest = blake2b(self.digest + text + entry.data, digest_size=8).digest()
        return MachineState(entry.index, entry.term, digest)


EMPTY = MachineState(Index(0), Term(0), b"")


@dataclass(slots=True)
class DiskImage:
    """The content of one disk."""

    hard_state: HardState = field(default_factory=HardState)
    state: MachineState = EMPTY
    log: MemoryReader = field(default_factory=MemoryReader)
    damaged: Index | None = None  # the entry whose checksum does not match
    # A snapshot whose state is stored while the log is still the old one. After a crash the log
    # is moved to it (raft/host/snapshots.py), so it counts as the content of the log.
    installing: SnapshotMeta | None = None
    installing_state: MachineState = EMPTY

    def copy(self) -> DiskImage:
        log = MemoryReader(self.log.snapshot())
        end = Index(self.log.last_index() + 1)
        entries = self.log.entries(self.log.first_index(), end, 1 << 40)
        if entries:
            log.write(entries)
        return DiskImage(
            self.hard_state, self.state, log, self.damaged, self.installing, self.installing_state
        )

    def holds(self, index: Index, term: Term) -> bool:
        """Whether the log or the snapshot contains this entry."""
        if self.installing is not None:
            return index <= self.installing.index
        return index <= self.log.snapshot().index or self.log.term(index) == term

    def members(self) -> Members | None:
        """The latest configuration; None: the initial one."""
        if self.installing is not None:
            return self.installing.members
        known = self.log.configurations()
        return known[-1][1] if known else None

    def finish_install(self) -> None:
        """Replace the log by the snapshot whose state is already stored, if there is one."""
        if self.installing is not None:
            self.state = self.installing_state
            self.log.install(self.installing)
            self.installing = None

    def end(self) -> tuple[Term, Index]:
        if self.installing is not None:
            return self.installing.term, self.installing.index
        last = self.log.last_index()
        return self.log.term(last) or Term(0), last


@dataclass(slots=True)
class DiskWrite:
    """One batch, or the part of it that a torn write left."""

    hard_state: HardState | None = None
    entries: Sequence[Entry] = ()
    compact: Index | None = None
    install: MachineState | None = None  # the state of a snapshot; the log stays for now
    members: Members | None = None  # at the snapshot to install
    replace_log: bool = False  # the log now starts at the snapshot whose state was stored

    def apply_to(self, image: DiskImage) -> None:
        if self.install is not None:
            image.installing_state = self.install
            image.installing = SnapshotMeta(self.install.index, self.install.term, self.members)
        if self.replace_log:
            image.finish_install()
        if self.hard_state is not None:
            image.hard_state = self.hard_state
        if self.entries:
            image.log.write(self.entries)
        if self.compact is not None:
            image.log.compact(self.compact)

    def torn(self, rng: Random) -> DiskWrite:
        """The part of this write that reached the disk: all but some of the last entries."""
        kept = rng.randint(0, len(self.entries))
        return DiskWrite(self.hard_state, self.entries[:kept])


@dataclass(slots=True)
class DiskTrouble:
    """The current faults of one disk."""

    slow: bool = False
    stalled_until_us: int = 0  # no flush ends before this time
    full_until_us: int = 0  # every write is refused before this time
    fails_next: bool = False  # the next write or flush fails


class SimDisk:
    """Live image, durable image, and the writes that are not flushed yet."""

    def __init__(self, *, power_fails: bool = True, in_memory: bool = False) -> None:
        """Without `power_fails` only processes crash, and the disk keeps everything written. With
        `in_memory` the disk holds only terms and votes; the log is in the live image."""
        self.live = DiskImage()
        self.durable = DiskImage()
        self.trouble = DiskTrouble()
        self.written = 0  # writes ever made; the last len(_pending) of them are not durable
        self._power_fails = power_fails
        self._in_memory = in_memory
        self._pending: list[DiskWrite] = []

    def write(self, write: DiskWrite) -> None:
        write.apply_to(self.live)
        self._pending.append(write)
        self.written += 1

    @property
    def safe(self) -> DiskImage:
        """The image whose entries count for a majority. Terms and votes count only if they are in
        the durable image."""
        return self.live if self._in_memory or not self._power_fails else self.durable

    def change_memory(self, write: DiskWrite) -> None:
        """A change to a log that is kept in memory: it never reaches the disk."""
        write.apply_to(self.live)

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
        """The node loses its memory and, in a power failure, what was not flushed. Returns the
        number of lost writes."""
        if not self._power_fails:
            self.flush_to(self.written)
        lost = self.lose_unflushed(rng, harsh=harsh)
        self.durable.finish_install()
        self.live = self.durable.copy()
        return lost

    def lose_unflushed(self, rng: Random, *, harsh: bool) -> int:
        """Lose what was not flushed, except perhaps a prefix. Returns the number of lost writes."""
        unflushed = len(self._pending)
        kept = rng.randint(0, unflushed) if rng.random() < 0.5 else 0
        self.flush_to(self.written - unflushed + kept)
        if self._pending and harsh:
            self._pending[0].torn(rng).apply_to(self.durable)
        self._pending.clear()
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
