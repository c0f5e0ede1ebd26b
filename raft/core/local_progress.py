"""How far this member itself has come: what is written, flushed, handed out and applied.

Owns: the hard state last given out to be written, the writes not known to be flushed, the entries
handed to the state machine, the snapshot that is being installed. Used by leaders and followers
alike.
May not touch: the commit rule (raft/core/commitment.py), the decisions about term, vote and role
(raft/core/election.py), messages, disk.
Spec: Raft section 5.3 (apply committed entries in order) and 7 (snapshots); thesis 10.2.1
(writing to disk in parallel)."""

from __future__ import annotations

from collections import deque
from typing import Final

from raft.core.commitment import Commitment
from raft.core.log import RaftLog
from raft.core.messages import Entry
from raft.types import HardState, Index, InvariantViolation, NodeId, SnapshotMeta, Term

COMMIT_STRIDE: Final = 64  # entries committed between two writes of the commit index


class WrittenHardState:
    """The hard state that was last given out to be written. A change of term, vote or lives must be
    written; take() does that."""

    __slots__ = ("_commit", "lives", "term", "vote")

    def __init__(self, stored: HardState, *, commit: Index, recovering: bool) -> None:
        self.term = stored.term
        self.vote = stored.vote
        self._commit = commit
        # A new life must be on disk before any other member hears of it.
        self.lives = -1 if recovering else stored.lives

    def take(
        self, term: Term, vote: NodeId, lives: int, *, commit: Index, with_entries: bool
    ) -> HardState | None:
        """Term, vote and lives whenever they changed. The commit index only saves work after a
        restart: it is written along with entries, and not with each of them, because a record of
        the group costs about as much as one of a small entry.
        `commit` must not exceed what is on disk already: if a crash loses the entries of the same
        write, it must not cover the old entries that they would have replaced."""
        if (
            not (with_entries and commit - self._commit >= COMMIT_STRIDE)
            and term == self.term
            and vote == self.vote
            and lives == self.lives
        ):
            return None
        self.term, self.vote, self._commit, self.lives = term, vote, commit, lives
        return HardState(term, vote, commit, lives)


class LocalProgress:
    """Invariants: applied <= handed <= commit index; handed <= log.persisted; neither applied nor
    handed ever goes back."""

    __slots__ = (
        "_commitment",
        "_log",
        "_unflushed",
        "applied",
        "handed",
        "install_due",
        "installing",
    )

    def __init__(self, log: RaftLog, commitment: Commitment, *, applied: Index | None) -> None:
        self._log = log
        self._commitment = commitment
        start = log.snapshot().index
        self.handed: Index = start  # handed to the state machine in a Ready
        self.applied: Index = start
        self.installing: SnapshotMeta | None = None  # replaces the log; no entries until then
        self.install_due = False  # no Ready has asked for `installing` yet
        # Writes not known to be flushed: (ready number, term then, end of the log then, its term).
        self._unflushed: deque[tuple[int, Term, Index, Term]] = deque()
        if applied is not None:
            self.mark_applied(applied)

    # -- the disk

    def wrote(self, number: int, term: Term) -> None:
        """Ready `number` carries a write. Once it is flushed, the log as it is now is on disk."""
        log = self._log
        end_term = log.last_term if log.written == log.last_index else log.term(log.written)
        assert end_term is not None, "entries that were given out are in the log"
        self._unflushed.append((number, term, log.written, end_term))

    @property
    def has_unflushed_writes(self) -> bool:
        return bool(self._unflushed)

    def flushed(self, number: int, *, term: Term, current_term: Term) -> bool:
        """Writes up to Ready `number` are flushed. Returns whether the last of them was made in
        the current term.

        Entries count as flushed only if the term has not changed since their write. In a later
        term they may have been cut and written again (with the same index and term) by
        a write that is not flushed yet. The first Ready of that term covers the whole log again."""
        unflushed = self._unflushed
        log = self._log
        written_in = Term(-1)
        while unflushed and unflushed[0][0] <= number:
            made, written_in, end, end_term = unflushed.popleft()
            if made == number and written_in != term:
                raise InvariantViolation(
                    f"Ready {number} was made in term {written_in}, not in {term}"
                )
            if written_in == current_term and end > log.persisted:
                known = log.last_term if end == log.last_index else log.term(end)
                if known == end_term:
                    log.persisted = end
        return written_in == current_term

    # -- the state machine

    @property
    def has_committed(self) -> bool:
        """Whether take_committed() would return entries."""
        return (
            self.handed < self._commitment.index
            and self.handed < self._log.persisted
            and self.installing is None
        )

    def take_committed(self, max_bytes: int) -> list[Entry]:
        """Committed entries not handed out yet. Only those on our own disk: the state machine may
        make its state durable at once, and our log must never end before that state."""
        limit = min(self._commitment.index, self._log.persisted)
        if self.handed >= limit or self.installing is not None:
            return []
        low = Index(self.handed + 1)
        committed = self._log.entries(low, Index(limit + 1), max_bytes)
        if not committed:
            raise InvariantViolation(f"entry {low} was cut away before it was handed out")
        self.handed = committed[-1].index
        return committed

    def mark_applied(self, index: Index) -> None:
        if index > self.handed:  # restart: the machine's state is ahead of the stored commit index
            if index > self._log.persisted:
                raise InvariantViolation(
                    f"applied up to {index}, but the log on disk ends at {self._log.persisted}"
                )
            self.handed = index
            self._commitment.raise_to(index)
        self.applied = max(self.applied, index)

    # -- snapshots

    def install(self, meta: SnapshotMeta) -> None:
        """A leader sent this snapshot: the next Ready asks the host to install it."""
        self.installing = meta
        self.install_due = True

    def take_install(self) -> SnapshotMeta | None:
        """The snapshot to install, once."""
        if not self.install_due:
            return None
        self.install_due = False
        return self.installing

    def restart_at(self, meta: SnapshotMeta) -> None:
        """The snapshot is installed: log and state machine start there."""
        self.installing = None
        self.install_due = False
        if meta.index > self._commitment.index:
            self._log.restore(meta)
            self._commitment.raise_to(meta.index)
            self.handed = self.applied = meta.index
