"""The log of one group as it is stored on disk.

Owns: first and last index, the terms between them, where each entry is, reading entries back.
May not touch: writing (LogStore does, and then calls us), the log's in-memory tail
(raft/core/log.py).
Spec: LogReader of raft/core/log.py. Indices are contiguous; a gap means damage. Twelve bytes of
memory per entry."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from raft.core.membership import members_of
from raft.core.messages import Entry, EntryKind
from raft.store.records import ENTRY_OVERHEAD, DamagedLog, GroupRecord
from raft.types import GroupId, HardState, Index, Members, SnapshotMeta, Term

NOWHERE: Final = 0  # the position of an entry that was found damaged


class EntrySource(Protocol):
    """Where the stored entries are read."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Protects the positions: another thread moves entries and frees their old segments. Must
        be held from the lookup of a position until the entry was read."""

    def read(
        self, group: GroupId, first: Index, positions: Sequence[int], sizes: Sequence[int]
    ) -> list[Entry]:
        """The entries from index `first` on, which are at these positions and have data of these
        sizes. Raises DamagedLog."""

    @property
    def overhead(self) -> int:
        """How many bytes longer the stored data of a normal entry is (encryption)."""


class GroupLog:
    """A LogReader over the segments."""

    __slots__ = (
        "_members",
        "_positions",
        "_run_starts",
        "_run_terms",
        "_sizes",
        "_source",
        "group",
        "last",
        "nbytes",
        "newest",
        "record",
        "record_position",
    )

    def __init__(self, group: GroupId, source: EntrySource | None) -> None:
        self.group = group
        self.record = GroupRecord()
        self.record_position = NOWHERE  # of the group record
        self.newest = NOWHERE  # the position where the last record of the group was first written
        self.nbytes = 0  # of all live entries
        self._source = source
        self.last = Index(0)  # the index of the last entry
        # Invariant: _run_terms[i] is the term of every index from _run_starts[i] to the next start.
        self._run_starts: list[int] = []
        self._run_terms: list[Term] = []
        self._members: list[tuple[Index, Members]] = []  # from CONFIG entries, oldest first
        # _positions[i] and _sizes[i]: those of entry first_index() + i. Empty for a log in memory.
        self._positions = array("Q")
        self._sizes = array("I")

    # LogReader

    def first_index(self) -> Index:
        return Index(self.record.snapshot.index + 1)

    def last_index(self) -> Index:
        return self.last

    def term(self, index: Index) -> Term | None:
        snapshot = self.record.snapshot
        if index == snapshot.index:
            return snapshot.term
        if not snapshot.index < index <= self.last:
            return None
        return self._run_terms[bisect_right(self._run_starts, index) - 1]

    def entries(self, low: Index, high: Index, max_bytes: int) -> list[Entry]:
        """Entries in [low, high) that fit into `max_bytes`, at least one; [] if compacted."""
        if low < self.first_index():
            return []
        if not low < high <= self.last + 1:
            raise DamagedLog(self.group, low, f"entries up to {high} are not in the log")
        return self._read(low, high, max_bytes)

    def snapshot(self) -> SnapshotMeta:
        return self.record.snapshot

    def configurations(self) -> list[tuple[Index, Members]]:
        snapshot = self.record.snapshot
        start = [] if snapshot.members is None else [(snapshot.index, snapshot.members)]
        return start + self._members

    def members_at(self, index: Index) -> Members | None:
        """The members at this index, which must not be compacted."""
        found: Members | None = None
        for at, members in self.configurations():
            if at <= index:
                found = members
        return found

    def hard_state(self) -> HardState:
        return self.record.hard_state

    @property
    def average_bytes(self) -> int:
        """Bytes of an average live entry, at least one."""
        count = self.last - self.record.snapshot.index
        return max(1, self.nbytes // count) if count else 1

    # called by LogStore

    def restore_record(self, record: GroupRecord, *, position: int, origin: int) -> None:
        """Recovery: the group record, before any entry is restored."""
        self.record = record
        self.record_position = position
        self.newest = origin
        self.last = record.snapshot.index

    def restore_entry(
        self, index: Index, term: Term, members: Members | None, *, position: int, size: int
    ) -> None:
        """Recovery: the next entry."""
        if members is not None:
            self._members.append((index, members))
        self._extend(index, term)
        self._positions.append(position)
        self._sizes.append(size)
        self.nbytes += size + ENTRY_OVERHEAD

    def appended(self, entries: Sequence[Entry], positions: Sequence[int] = ()) -> None:
        """`entries` are now on disk, at these positions, and nothing above them is."""
        self._truncate(entries[0].index)
        self._positions.extend(positions)
        if positions:
            more = 0 if self._source is None else self._source.overhead
            sizes = [
                len(entry.data) + (more if entry.kind is EntryKind.NORMAL else 0)
                for entry in entries
            ]
            self._sizes.extend(sizes)
            self.nbytes += sum(sizes) + ENTRY_OVERHEAD * len(sizes)
        else:
            self.nbytes += sum(len(entry.data) + ENTRY_OVERHEAD for entry in entries)
        for entry in entries:
            if entry.kind is EntryKind.CONFIG:
                self._members.append((entry.index, members_of(entry.data)))
            self._extend(entry.index, entry.term)

    def appended_one(self, entry: Entry, position: int) -> None:
        """Like `appended`, for the usual case: one entry, directly after the last one."""
        terms = self._run_terms
        if (
            entry.index != self.last + 1
            or entry.kind is not EntryKind.NORMAL
            or not terms
            or terms[-1] != entry.term
        ):
            self.appended((entry,), (position,))
            return
        size = len(entry.data)
        if self._source is not None:
            size += self._source.overhead
        self._positions.append(position)
        self._sizes.append(size)
        self.nbytes += size + ENTRY_OVERHEAD
        self.last = entry.index

    def compacted(self, snapshot: SnapshotMeta) -> None:
        """The entries up to the snapshot were deleted; those above it stay."""
        dropped = min(snapshot.index, self.last) - self.record.snapshot.index
        self._forget(0, max(0, dropped))
        self.record = self.record.with_snapshot(snapshot)
        keep = max(0, bisect_right(self._run_starts, snapshot.index + 1) - 1)
        del self._run_starts[:keep]
        del self._run_terms[:keep]
        self._members = [known for known in self._members if known[0] > snapshot.index]
        if snapshot.index >= self.last:
            self.reset(snapshot)

    def reset(self, snapshot: SnapshotMeta) -> None:
        """The whole log was deleted; it starts again after the snapshot."""
        self.record = self.record.with_snapshot(snapshot)
        self.last = snapshot.index
        self.nbytes = 0
        self._run_starts.clear()
        self._run_terms.clear()
        self._members.clear()
        del self._positions[:]
        del self._sizes[:]

    def entries_between(self, start: int, end: int, highest: int) -> list[tuple[Index, int, int]]:
        """Index, position and data size of the entries in this range of positions. None of them
        has an index above `highest`."""
        first = self.first_index()
        positions = self._positions[: max(0, highest + 1 - first)]
        return [
            (Index(first + i), position, self._sizes[i])
            for i, position in enumerate(positions)
            if start <= position < end
        ]

    def is_at(self, index: Index, position: int) -> bool:
        """Whether the entry of this index is in the log, at this position."""
        i = index - self.first_index()
        return 0 <= i < len(self._positions) and self._positions[i] == position

    def moved(self, index: Index, position: int) -> None:
        """The entry is now at this position."""
        self._positions[index - self.first_index()] = position

    def place_before(self, index: Index) -> tuple[Index, Index, Term]:
        """The index before the first entry, that of the last one, and the term of the entry before
        this index."""
        start, last = self.record.snapshot.index, self.last
        if index == last + 1 and last > start:
            return start, last, self._run_terms[-1]
        return start, last, self.term(Index(index - 1)) or Term(0)

    def _extend(self, index: Index, term: Term) -> None:
        if not self._run_terms or self._run_terms[-1] != term:
            self._run_starts.append(index)
            self._run_terms.append(term)
        self.last = index

    def _truncate(self, index: Index) -> None:
        if index > self.last:
            return
        start = max(0, index - self.first_index())
        self._forget(start, self.last + 1 - self.first_index())
        self.last = Index(index - 1)
        while self._run_starts and self._run_starts[-1] >= index:
            self._run_starts.pop()
            self._run_terms.pop()
        while self._members and self._members[-1][0] >= index:
            self._members.pop()

    def _forget(self, start: int, stop: int) -> None:
        """Drop the positions of these entries, counted from the first."""
        dropped = self._sizes[start:stop]
        self.nbytes -= sum(dropped) + ENTRY_OVERHEAD * len(dropped)
        del self._positions[start:stop]
        del self._sizes[start:stop]

    def _read(self, low: Index, high: Index, max_bytes: int) -> list[Entry]:
        """`low` and `high` are in the log."""
        assert self._source is not None
        start = low - self.first_index()
        stop, size = start, 0
        for stop in range(start, high - self.first_index()):
            size += self._sizes[stop]
            if size > max_bytes and stop > start:
                break
        else:
            stop += 1
        with self._source.lock:
            return self._source.read(
                self.group, low, self._positions[start:stop], self._sizes[start:stop]
            )


class MemoryLog(GroupLog):
    """The log of a group that is not persisted: same rules, entries in memory until compacted.

    A replica with such a log loses its entries when it restarts, so it must not vote until it has
    caught up."""

    __slots__ = ("_entries",)

    def __init__(self, group: GroupId) -> None:
        super().__init__(group, None)
        self._entries: list[Entry] = []  # Invariant: contiguous, _entries[0].index == first_index()

    def appended(self, entries: Sequence[Entry], positions: Sequence[int] = ()) -> None:
        super().appended(entries)
        self._entries.extend(entries)

    def reset(self, snapshot: SnapshotMeta) -> None:
        self._entries.clear()
        super().reset(snapshot)

    def _forget(self, start: int, stop: int) -> None:
        dropped = self._entries[start:stop]
        self.nbytes -= sum(len(entry.data) + ENTRY_OVERHEAD for entry in dropped)
        del self._entries[start:stop]

    def _read(self, low: Index, high: Index, max_bytes: int) -> list[Entry]:
        found: list[Entry] = []
        size = 0
        for entry in self._entries[low - self.first_index() : high - self.first_index()]:
            size += len(entry.data)
            if found and size > max_bytes:
                break
            found.append(entry)
        return found
