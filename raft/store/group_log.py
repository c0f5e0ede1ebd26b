"""The log of one group as it is stored on disk.

Owns: first and last index, the terms between them, reading entries back.
May not touch: writing (LogStore does, and then calls us), the log's in-memory tail
(raft/core/log.py).
Spec: LogReader of raft/core/log.py. Indices are contiguous; a gap means damage."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from rocksdict import Rdict

from raft.core.membership import members_of
from raft.core.messages import Entry, EntryKind
from raft.store.records import ENTRY_OVERHEAD, KEY, DamagedLog, GroupRecord, read_entry, read_group
from raft.types import GroupId, HardState, Index, Members, SnapshotMeta, Term


class GroupLog:
    """A LogReader over column family "raft"."""

    __slots__ = (
        "_column",
        "_last",
        "_members",
        "_run_starts",
        "_run_terms",
        "group",
        "nbytes",
        "record",
    )

    def __init__(self, group: GroupId, column: Rdict | None) -> None:
        self.group = group
        self.record = GroupRecord()
        self.nbytes = 0  # of all live entries; after a cut, estimated from the average
        self._column = column
        self._last = Index(0)
        # Invariant: _run_terms[i] is the term of every index from _run_starts[i] to the next start.
        self._run_starts: list[int] = []
        self._run_terms: list[Term] = []
        self._members: list[tuple[Index, Members]] = []  # from CONFIG entries, oldest first

    # LogReader

    def first_index(self) -> Index:
        return Index(self.record.snapshot.index + 1)

    def last_index(self) -> Index:
        return self._last

    def term(self, index: Index) -> Term | None:
        snapshot = self.record.snapshot
        if index == snapshot.index:
            return snapshot.term
        if not snapshot.index < index <= self._last:
            return None
        return self._run_terms[bisect_right(self._run_starts, index) - 1]

    def entries(self, low: Index, high: Index, max_bytes: int) -> list[Entry]:
        """Entries in [low, high) that fit into `max_bytes`, at least one; [] if compacted."""
        if low < self.first_index():
            return []
        if not low < high <= self._last + 1:
            raise DamagedLog(self.group, low, f"entries up to {high} are not in the log")
        found: list[Entry] = []
        size = 0
        for entry in self._scan(low):
            size += len(entry.data)
            if found and size > max_bytes:
                return found
            found.append(entry)
            if entry.index + 1 >= high:
                return found
        raise DamagedLog(self.group, Index(low + len(found)), "the log ends before its last index")

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
        count = self._last - self.record.snapshot.index
        return max(1, self.nbytes // count) if count else 1

    # called by LogStore

    def load(self) -> None:
        """Read and check the whole log. Raises DamagedLog."""
        assert self._column is not None
        value = self._column.get(KEY.pack(self.group, 0))
        self.record = GroupRecord() if value is None else read_group(self.group, value)
        self._last = self.record.snapshot.index
        for entry in self._scan(Index(1)):
            if value is None or entry.index != self._last + 1:
                raise DamagedLog(
                    self.group, Index(self._last + 1), f"the next entry on disk is {entry.index}"
                )
            self._append(entry)
        if self.record.hard_state.commit > self._last:
            commit = self.record.hard_state.commit
            raise DamagedLog(
                self.group,
                Index(self._last + 1),
                f"missing, although the log is committed up to {commit}",
            )

    def appended(self, entries: Sequence[Entry]) -> None:
        """`entries` are now on disk, and nothing above them is."""
        self._truncate(entries[0].index)
        for entry in entries:
            self._append(entry)

    def compacted(self, snapshot: SnapshotMeta) -> None:
        """The entries up to the snapshot were deleted; those above it stay."""
        dropped = min(snapshot.index, self._last) - self.record.snapshot.index
        self.nbytes = max(0, self.nbytes - dropped * self.average_bytes)
        self.record = self.record.with_snapshot(snapshot)
        keep = max(0, bisect_right(self._run_starts, snapshot.index + 1) - 1)
        del self._run_starts[:keep]
        del self._run_terms[:keep]
        self._members = [known for known in self._members if known[0] > snapshot.index]
        if snapshot.index >= self._last:
            self.reset(snapshot)

    def reset(self, snapshot: SnapshotMeta) -> None:
        """The whole log was deleted; it starts again after the snapshot."""
        self.record = self.record.with_snapshot(snapshot)
        self._last = snapshot.index
        self.nbytes = 0
        self._run_starts.clear()
        self._run_terms.clear()
        self._members.clear()

    def _append(self, entry: Entry) -> None:
        if not self._run_terms or self._run_terms[-1] != entry.term:
            self._run_starts.append(entry.index)
            self._run_terms.append(entry.term)
        if entry.kind is EntryKind.CONFIG:
            self._members.append((entry.index, members_of(entry.data)))
        self._last = entry.index
        self.nbytes += len(entry.data) + ENTRY_OVERHEAD

    def _truncate(self, index: Index) -> None:
        if index > self._last:
            return
        self.nbytes = max(0, self.nbytes - (self._last + 1 - index) * self.average_bytes)
        self._last = Index(index - 1)
        while self._run_starts and self._run_starts[-1] >= index:
            self._run_starts.pop()
            self._run_terms.pop()
        while self._members and self._members[-1][0] >= index:
            self._members.pop()

    def _scan(self, low: Index) -> Iterator[Entry]:
        assert self._column is not None
        index = Index(low - 1)
        try:
            for key, value in self._column.items(from_key=KEY.pack(self.group, low)):
                assert isinstance(key, bytes)  # raw mode
                group, position = KEY.unpack(key)
                if group != self.group:
                    return
                index = Index(position)
                yield read_entry(self.group, index, value)
        except DamagedLog:
            raise
        except Exception as error:  # rocksdict raises plain Exception for a bad block
            raise DamagedLog(self.group, Index(index + 1), str(error)) from error


class MemoryLog(GroupLog):
    """The log of a group that is not persisted: same rules, entries in memory until compacted.

    A replica with such a log loses its entries when it restarts, so it must not vote until it has
    caught up."""

    __slots__ = ("_entries",)

    def __init__(self, group: GroupId) -> None:
        super().__init__(group, None)
        self._entries: list[Entry] = []  # Invariant: contiguous, _entries[0].index == first_index()

    def load(self) -> None:
        """There is nothing to load."""

    def appended(self, entries: Sequence[Entry]) -> None:
        del self._entries[max(0, entries[0].index - self.first_index()) :]
        self._entries.extend(entries)
        super().appended(entries)

    def compacted(self, snapshot: SnapshotMeta) -> None:
        del self._entries[: max(0, snapshot.index + 1 - self.first_index())]
        super().compacted(snapshot)

    def reset(self, snapshot: SnapshotMeta) -> None:
        self._entries.clear()
        super().reset(snapshot)

    def _scan(self, low: Index) -> Iterator[Entry]:
        yield from self._entries[max(0, low - self.first_index()) :]
