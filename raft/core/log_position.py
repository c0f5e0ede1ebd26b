"""A member's log and how far it has come: written, flushed, committed, handed out, applied.

Owns: the RaftLog, commit and applied index, the writes not known to be flushed, a snapshot being
installed. Knows nothing of roles: leader and follower use it alike.
May not touch: term, vote and role (RaftCore's), messages, disk, clocks, dice.
Spec: Raft sections 5.3, 5.4.2 and 7; thesis 10.2.1 (writing to disk in parallel)."""

from __future__ import annotations

from collections import deque

from raft.core.log import RaftLog
from raft.core.messages import Entry
from raft.types import Index, InvariantViolation, SnapshotMeta, Term


class LogPosition:
    """Invariants: applied <= handed <= commit <= log.last_index; handed <= log.persisted;
    none of them ever goes back."""

    __slots__ = (
        "_outstanding",
        "applied",
        "commit",
        "handed",
        "installing",
        "log",
        "truncates_blindly",
    )

    def __init__(self, log: RaftLog, *, commit: Index, applied: Index | None) -> None:
        self.log = log
        start = log.snapshot().index
        # A stored commit index only saves work; a torn write may leave it ahead of the log.
        self.commit: Index = max(min(commit, log.last_index), start)
        self.handed: Index = start
        self.applied: Index = start
        self.installing: SnapshotMeta | None = None
        self.truncates_blindly = False  # planted on purpose, by tests of the simulator only
        # Writes not known to be flushed: (ready number, term then, end of the log then, its term).
        self._outstanding: deque[tuple[int, Term, Index, Term]] = deque()
        if applied is not None:
            self.mark_applied(applied)

    # -- appending

    def offer(self, previous: Index, previous_term: Term, entries: list[Entry]) -> Index | None:
        """Take a leader's entries if our log holds (previous, previous_term): the index up to
        which our log is now the leader's, or None when it does not fit (section 5.3)."""
        if previous < self.commit:
            # What is committed is the same everywhere: only what follows can be news.
            entries = entries[self.commit - previous :]
            previous = self.commit
        elif not self.log.matches(previous, previous_term):
            return None
        if entries:
            self._store(previous, entries)
        return Index(previous + len(entries))

    def _store(self, previous: Index, entries: list[Entry]) -> None:
        """Append what is missing, cutting away what conflicts."""
        log = self.log
        if entries[0].index != previous + 1:
            raise InvariantViolation(f"entry {entries[0].index} sent to follow {previous}")
        if previous == log.last_index:
            log.extend(entries)
            return
        known = 0 if self.truncates_blindly else log.first_conflict(entries)
        if known == len(entries):
            return
        index = entries[known].index
        if index <= self.commit:
            raise InvariantViolation(f"a leader would overwrite entry {index}, which is committed")
        if index <= log.last_index:
            log.cut(index)
        log.extend(entries[known:])

    def commit_to(self, index: Index) -> None:
        """A leader says that entries up to index are committed and that we hold them."""
        if index > self.commit:
            if index > self.log.last_index:
                raise InvariantViolation(
                    f"the leader counts on our entries up to {index}, but our log ends at "
                    f"{self.log.last_index}: the disk lost what it had flushed"
                )
            self.commit = index

    # -- the disk

    def wrote(self, number: int, term: Term) -> None:
        """Ready `number` carries a write; once flushed, it vouches for the log as it is now."""
        log = self.log
        end_term = log.term(log.written)
        assert end_term is not None, "what was given out is in the log"
        self._outstanding.append((number, term, log.written, end_term))

    @property
    def has_outstanding_writes(self) -> bool:
        return bool(self._outstanding)

    def flushed(self, number: int, *, term: Term, current_term: Term) -> bool:
        """Writes up to Ready `number` are flushed. Whether one of them is of the current term.

        Entries count as flushed only if no term passed since their write: in a later term they
        may have been cut and written again (the same index and term can come back) by a write
        that is not flushed yet. That term's own Ready vouches for the whole log once more."""
        outstanding = self._outstanding
        log = self.log
        written_in = Term(-1)
        while outstanding and outstanding[0][0] <= number:
            made, written_in, end, end_term = outstanding.popleft()
            if made == number and written_in != term:
                raise InvariantViolation(
                    f"Ready {number} was made in term {written_in}, not in {term}"
                )
            if written_in == current_term and end > log.persisted and log.term(end) == end_term:
                log.persisted = end
        return written_in == current_term

    # -- the machine

    @property
    def has_committed(self) -> bool:
        return (
            self.handed < self.commit
            and self.handed < self.log.persisted
            and self.installing is None
        )

    def take_committed(self, max_bytes: int) -> list[Entry]:
        """Committed entries not handed out yet. Only those on our own disk: the machine may
        make its state durable at once, and its log must never end below that state."""
        limit = min(self.commit, self.log.persisted)
        if self.handed >= limit or self.installing is not None:
            return []
        low = Index(self.handed + 1)
        committed = self.log.entries(low, Index(limit + 1), max_bytes)
        if not committed:
            raise InvariantViolation(f"entry {low} was cut away before it was handed out")
        self.handed = committed[-1].index
        return committed

    def mark_applied(self, index: Index) -> None:
        if index > self.handed:  # a restart: the machine kept more than the stored commit index
            if index > self.log.persisted:
                raise InvariantViolation(
                    f"applied up to {index}, but the log on disk ends at {self.log.persisted}"
                )
            self.handed = index
            self.commit = max(self.commit, index)
        self.applied = max(self.applied, index)

    def restart_at(self, meta: SnapshotMeta) -> None:
        """The snapshot is installed: log and machine start there."""
        self.installing = None
        if meta.index > self.commit:
            self.log.restore(meta)
            self.commit = self.handed = self.applied = meta.index
