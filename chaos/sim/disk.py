"""A disk that keeps exactly what was flushed: writes are seen at once, survive only a flush.

Owns: the live image (what a reader sees) and the durable one (what a crash leaves).
May not touch: the core; it is the LogReader of its log.
Spec: the host's contract: one atomic write per Ready, flushed later, in order; a crash loses what
was not flushed, or keeps a prefix of it; in harsh seeds a write may be torn in the middle. Rarely
a bit of an entry that was flushed flips: its checksum tells when it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from raft.core.log import MemoryReader
from raft.core.messages import Entry
from raft.types import HardState, Index, Members, SnapshotMeta, Term


@dataclass(frozen=True, slots=True)
class MachineState:
    """The replicated state: a hash chain over everything applied."""

    index: Index
    term: Term
    digest: bytes


EMPTY = MachineState(Index(0), Term(0), b"")


@dataclass(slots=True)
class Image:
    """Content of one disk. The log is a MemoryReader used as a value."""

    hard_state: HardState = field(default_factory=HardState)
    state: MachineState = EMPTY
    log: MemoryReader = field(default_factory=MemoryReader)
    damaged: Index | None = None  # the entry whose checksum does not match

    def copy(self) -> Image:
        log = MemoryReader(self.log.snapshot())
        end = Index(self.log.last_index() + 1)
        entries = self.log.entries(self.log.first_index(), end, 1 << 40)
        if entries:
            log.write(entries)
        return Image(self.hard_state, self.state, log, self.damaged)

    def holds(self, index: Index, term: Term) -> bool:
        """Whether the log has this entry, or a snapshot stands for it."""
        return index <= self.log.snapshot().index or self.log.term(index) == term

    def end(self) -> tuple[Term, Index]:
        last = self.log.last_index()
        return self.log.term(last) or Term(0), last


@dataclass(slots=True)
class Write:
    """One atomic batch, or what a torn one left of itself."""

    hard_state: HardState | None = None
    entries: Sequence[Entry] = ()
    compact: Index | None = None
    install: MachineState | None = None
    members: Members | None = None  # at the snapshot to install

    def onto(self, image: Image) -> None:
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

    def torn(self, luck: Random) -> Write:
        """A part of this write, cut somewhere between its puts."""
        kept = luck.randint(0, len(self.entries))
        return Write(self.hard_state, self.entries[:kept], None, None)


class SimDisk:
    """Live image, durable image, and the writes between them."""

    def __init__(self) -> None:
        self.live = Image()
        self.durable = Image()
        self.written = 0  # writes ever made; the last len(_pending) of them are not durable
        self._pending: list[Write] = []

    def write(self, write: Write) -> None:
        write.onto(self.live)
        self._pending.append(write)
        self.written += 1

    def flush_to(self, position: int) -> None:
        """The first `position` writes ever made are durable now."""
        count = position - (self.written - len(self._pending))
        if count > 0:
            for write in self._pending[:count]:
                write.onto(self.durable)
            del self._pending[:count]

    def save_state(self, state: MachineState) -> None:
        """A checkpoint of the machine has reached the disk, on a path of its own."""
        for image in (self.durable, self.live):
            if state.index > image.state.index:
                image.state = state

    def crash(self, luck: Random, *, harsh: bool) -> int:
        """Lose what was not flushed, except perhaps a prefix. Returns the writes lost."""
        unflushed = len(self._pending)
        kept = luck.randint(0, unflushed) if luck.random() < 0.5 else 0
        self.flush_to(self.written - unflushed + kept)
        if self._pending and harsh and self._pending[0].install is None:
            self._pending[0].torn(luck).onto(self.durable)
        self._pending.clear()
        self.live = self.durable.copy()
        return unflushed - kept

    def damage(self, luck: Random) -> Index | None:
        """Flip a bit of a flushed entry, while the node is down. None: there is no entry."""
        log = self.durable.log
        first, last = log.first_index(), log.last_index()
        if last < first or self.durable.damaged is not None:
            return None
        index = Index(luck.randint(first, last))
        entries = log.entries(index, Index(last + 1), 1 << 40)
        whole = entries[0]
        flipped = bytes((b"".join((whole.data, b"?"))[0] ^ 1,)) + whole.data[1:]
        log.write([Entry(index, whole.term, flipped, whole.kind), *entries[1:]])
        self.durable.damaged = index
        self.live = self.durable.copy()
        return index

    def lose_log(self) -> None:
        """The log is given up, on purpose; the promises of term and vote are not."""
        self._pending.clear()
        self.durable = Image(self.durable.hard_state.after_loss())
        self.live = self.durable.copy()
