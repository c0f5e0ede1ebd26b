"""The log of one group as the core sees it: a tail in memory, older entries through a LogReader.

Owns: which entries are new, which were given out to be written, which are known to be on disk;
the configurations in the log.
May not touch: the disk (a LogReader does), clocks, random numbers, which entries to append
(raft/core/log_matching.py).
Spec: Raft figure 2 (log[]); section 7 (a log that starts at a snapshot)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from raft.core.membership import LogConfigurations, members_of
from raft.core.messages import Entry, EntryKind
from raft.types import Index, InvariantViolation, Members, SnapshotMeta, Term

CROWDED_TAIL_BYTES = 128 << 10  # of a group, when the tails of all groups hold too much
ENTRY_OVERHEAD_BYTES = 32  # counted per entry, so that empty entries have a size


class LogReader(Protocol):
    """The stored log: everything that was written, flushed or not.

    An empty log has last_index() == first_index() - 1 == snapshot().index."""

    def first_index(self) -> Index:
        """The lowest index whose entry is stored (or would be, in an empty log)."""

    def last_index(self) -> Index: ...

    def term(self, index: Index) -> Term | None:
        """The term at index; None when the log ends before it or it is compacted away."""

    def entries(self, low: Index, high: Index, max_bytes: int) -> list[Entry]:
        """Entries in [low, high) that fit in max_bytes, at least one; [] when compacted away."""

    def snapshot(self) -> SnapshotMeta:
        """The position just before first_index(); (0, 0) in a log that was never compacted."""

    def configurations(self) -> Sequence[tuple[Index, Members]]:
        """The members at snapshot(), if known, then those of every stored CONFIG entry."""


class TailRoom:
    """What the tails of all groups of a node hold together. Beyond `most` every tail that moves
    is cut to little: a thousand groups would hold a thousand times what one may."""

    __slots__ = ("most", "used")

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0


class RaftLog:
    """Invariants: persisted <= written <= last_index; every entry above `persisted` is in the
    tail; the reader is only asked below the tail, so it never returns an overwritten entry."""

    __slots__ = (
        "_before_term",
        "_counted_bytes",
        "_first",
        "_reader",
        "_room",
        "_tail",
        "_tail_bytes",
        "_tail_bytes_max",
        "configurations",
        "last_index",
        "last_term",
        "persisted",
        "written",
    )

    def __init__(
        self, reader: LogReader, *, tail_bytes_max: int = 1 << 20, room: TailRoom | None = None
    ) -> None:
        self._reader = reader
        self._tail: list[Entry] = []
        self._tail_bytes = 0
        self._tail_bytes_max = tail_bytes_max
        self._room = room or TailRoom(1 << 62)
        self._counted_bytes = 0  # of the tail, that the room knows of
        self.last_index: Index = reader.last_index()
        self.last_term: Term = Term(0)
        self.written: Index = self.last_index  # given out in a Ready
        self.persisted: Index = self.last_index  # known to be flushed
        self._first = Index(self.last_index + 1)  # index of the first entry of the tail
        self._before_term = Term(0)  # term of the entry before the tail
        if self.last_index:
            term = self.stored_term(self.last_index)
            if term is None:
                raise InvariantViolation(f"stored log has no term for its end {self.last_index}")
            self.last_term = self._before_term = term
        self.configurations = LogConfigurations(reader.configurations())

    @property
    def first_index(self) -> Index:
        """The lowest index whose entry can still be read."""
        return min(self._first, self._reader.first_index())

    def snapshot(self) -> SnapshotMeta:
        return self._reader.snapshot()

    def stored_term(self, index: Index) -> Term | None:
        term = self._reader.term(index) if index else None
        if term is None:
            meta = self._reader.snapshot()  # (0, 0) as long as nothing was compacted
            return meta.term if meta.index == index else None
        return term

    def term(self, index: Index) -> Term | None:
        """The term at index, None outside the log. Index 0 has term 0, unless compacted away."""
        first = self._first
        if index >= first:
            return self._tail[index - first].term if index <= self.last_index else None
        if index == first - 1:
            return self._before_term
        return self.stored_term(index)

    def entries(self, low: Index, high: Index, max_bytes: int) -> list[Entry]:
        """Entries in [low, high) that fit in max_bytes, at least one; [] when compacted away.

        May stop early where the tail begins."""
        first = self._first
        if low < first:
            return self._reader.entries(low, min(high, first), max_bytes)
        tail = self._tail
        start = low - first
        stop = min(high, self.last_index + 1) - first
        size = 0
        for position in range(start, stop):
            size += len(tail[position].data) + ENTRY_OVERHEAD_BYTES
            if size > max_bytes and position > start:
                return tail[start:position]
        return tail[start:stop]

    def append(self, entry: Entry) -> None:
        """Append a leader's own next entry."""
        self._tail.append(entry)
        self._tail_bytes += len(entry.data) + ENTRY_OVERHEAD_BYTES
        self.last_index = entry.index
        self.last_term = entry.term
        if entry.kind is EntryKind.CONFIG:
            self.configurations.append(entry, log_start=self.snapshot().index)

    def extend(self, entries: Sequence[Entry]) -> None:
        """Append entries of a leader; the first one follows the end of the log."""
        self._tail.extend(entries)
        size = 0
        for entry in entries:
            size += len(entry.data) + ENTRY_OVERHEAD_BYTES
            if entry.kind is EntryKind.CONFIG:
                self.configurations.append(entry, log_start=self.snapshot().index)
        self._tail_bytes += size
        self.last_index = entries[-1].index
        self.last_term = entries[-1].term

    def cut(self, index: Index) -> None:
        """Remove the entry at index and all after it."""
        first = self._first
        keep = Index(index - 1)
        term = self.term(keep)
        if term is None:
            raise InvariantViolation(f"cannot cut the log at {index}: entry {keep} is not known")
        if index >= first:
            dropped = self._tail[index - first :]
            del self._tail[index - first :]
            self._tail_bytes -= sum(len(e.data) + ENTRY_OVERHEAD_BYTES for e in dropped)
        else:
            self._tail = []
            self._tail_bytes = 0
            self._first = index
            self._before_term = term
        self.last_index = keep
        self.last_term = term
        self.written = min(self.written, keep)
        self.persisted = min(self.persisted, keep)
        self.configurations.cut_after(keep)

    def back_off(self, index: Index, term: Term, *, floor: Index) -> tuple[Index, Term]:
        """The largest index in [floor, index] whose term is at most `term`, with its term.

        Skips a whole conflicting term in one round trip (the end of section 5.3)."""
        while index > floor:
            known = self.term(index)
            if known is None:
                break
            if known <= term:
                return index, known
            index = Index(index - 1)
        return index, self.term(index) or Term(0)

    def take_unwritten(self, max_bytes: int) -> list[Entry]:
        """Entries not yet given out to be written that fit in max_bytes, at least one. They count
        as given out from now on."""
        if self.written == self.last_index:
            return []
        entries = self.entries(Index(self.written + 1), Index(self.last_index + 1), max_bytes)
        self.written = entries[-1].index
        return entries

    def restore(self, meta: SnapshotMeta) -> None:
        """Start over at a snapshot that the store has installed."""
        self._tail = []
        self._tail_bytes = 0
        self._first = Index(meta.index + 1)
        self._before_term = self.last_term = meta.term
        self.last_index = self.written = self.persisted = meta.index
        self.configurations.restart_at(meta)

    def release(self, handed: Index, *, needed: bool = True) -> None:
        """Evict old tail entries that are on disk and were handed out to be applied.

        A tail within its bound is kept for followers that are a little behind, unless none needs
        it. Beyond the bound half of it is dropped at once, so that the cost of moving the rest is
        spread over many entries."""
        tail_bytes, room = self._tail_bytes, self._room
        room.used += tail_bytes - self._counted_bytes
        self._counted_bytes = tail_bytes
        share = room.most if room.used <= room.most else CROWDED_TAIL_BYTES
        bytes_max = min(self._tail_bytes_max, share) if needed else 0
        if tail_bytes <= bytes_max:
            return
        first, tail = self._first, self._tail
        limit = min(self.persisted, handed) - first + 1
        goal = self._tail_bytes - bytes_max // 2
        count = size = 0
        while count < limit and size < goal:
            size += len(tail[count].data) + ENTRY_OVERHEAD_BYTES
            count += 1
        if count > 0:
            self._before_term = tail[count - 1].term
            del tail[:count]
            self._first = Index(first + count)
            self._tail_bytes = self._counted_bytes = tail_bytes - size
            room.used -= size

    def leave(self) -> None:
        """The group is no longer on this node: its tail takes no room."""
        self._room.used -= self._counted_bytes
        self._counted_bytes = 0


class MemoryReader:
    """A LogReader over a list, for tests and simulations."""

    def __init__(self, meta: SnapshotMeta | None = None) -> None:
        self._meta = meta or SnapshotMeta(Index(0), Term(0))
        self._entries: list[Entry] = []
        self._configs: list[Entry] = []  # the entries of kind CONFIG

    def first_index(self) -> Index:
        return Index(self._meta.index + 1)

    def last_index(self) -> Index:
        return Index(self._meta.index + len(self._entries))

    def term(self, index: Index) -> Term | None:
        position = index - self._meta.index - 1
        if position == -1:
            return self._meta.term
        return self._entries[position].term if 0 <= position < len(self._entries) else None

    def entries(self, low: Index, high: Index, max_bytes: int) -> list[Entry]:
        start = low - self._meta.index - 1
        if start < 0:
            return []
        found: list[Entry] = []
        size = 0
        for entry in self._entries[start : max(start, high - self._meta.index - 1)]:
            size += len(entry.data) + ENTRY_OVERHEAD_BYTES
            if found and size > max_bytes:
                break
            found.append(entry)
        return found

    def snapshot(self) -> SnapshotMeta:
        return self._meta

    def configurations(self) -> list[tuple[Index, Members]]:
        meta = self._meta
        found = [] if meta.members is None else [(meta.index, meta.members)]
        return found + [(entry.index, members_of(entry.data)) for entry in self._configs]

    def write(self, entries: Sequence[Entry]) -> None:
        """Cut at the first index, then append, as a store does with Ready.entries."""
        del self._entries[entries[0].index - self._meta.index - 1 :]
        while self._configs and self._configs[-1].index >= entries[0].index:
            self._configs.pop()
        self._entries.extend(entries)
        self._configs.extend(entry for entry in entries if entry.kind is EntryKind.CONFIG)

    def compact(self, upto: Index) -> None:
        """Drop entries up to and including upto."""
        term = self.term(upto)
        if term is None or upto <= self._meta.index:
            return
        members = None
        for at, known in self.configurations():
            if at <= upto:
                members = known
        del self._entries[: upto - self._meta.index]
        self._configs = [entry for entry in self._configs if entry.index > upto]
        self._meta = SnapshotMeta(upto, term, members)

    def install(self, meta: SnapshotMeta) -> None:
        self._entries = []
        self._configs = []
        self._meta = meta
