"""Log matching: when a follower accepts an append, and which entries it keeps, cuts or adds.

Owns: the consistency check of AppendEntries and what happens to conflicting entries.
May not touch: messages, terms and roles, the commit index (it only reads it), disk.
Spec: Raft section 5.3 (log matching property, AppendEntries receiver rules 2 to 4 of figure 2)."""

from __future__ import annotations

from collections.abc import Sequence

from raft.core.commitment import Commitment
from raft.core.log import RaftLog
from raft.core.messages import Entry
from raft.types import Index, InvariantViolation, Term


class LogMatching:
    """The follower's side of replication for one log."""

    __slots__ = ("_commitment", "_log")

    def __init__(self, log: RaftLog, commitment: Commitment) -> None:
        self._log = log
        self._commitment = commitment

    def accept(self, previous: Index, previous_term: Term, entries: list[Entry]) -> Index | None:
        """Take a leader's entries if our log holds (previous, previous_term). Returns the index
        up to which our log now equals the leader's, or None when the check fails."""
        commit = self._commitment.index
        if previous < commit:
            # Committed entries are the same on all members: only later ones can be new to us.
            entries = entries[commit - previous :]
            previous = commit
        elif not self.holds(previous, previous_term):
            return None
        if entries:
            self._store(previous, entries)
        return Index(previous + len(entries))

    def holds(self, index: Index, term: Term) -> bool:
        """The consistency check: whether our log has an entry of this term at this index."""
        log = self._log
        if index == log.last_index:
            return term == log.last_term
        return log.term(index) == term

    def first_new(self, entries: Sequence[Entry]) -> int:
        """Position of the first entry that our log lacks or holds with another term; the number
        of entries if it has them all.

        Entries that match stay: the append may be old and reordered, and the log may hold later
        entries that we have already confirmed."""
        log = self._log
        for position, entry in enumerate(entries):
            if entry.index > log.last_index or log.term(entry.index) != entry.term:
                return position
        return len(entries)

    def hint(self, refused: Index, term: Term) -> tuple[Index, Term]:
        """Where our log may agree with a leader whose append after (refused, term) does not fit."""
        log = self._log
        return log.back_off(min(refused, log.last_index), term, floor=self._commitment.index)

    def _store(self, previous: Index, entries: list[Entry]) -> None:
        """Append the entries we lack; a conflict cuts our log there first."""
        log = self._log
        if entries[0].index != previous + 1:
            raise InvariantViolation(f"entry {entries[0].index} sent to follow {previous}")
        if previous == log.last_index:
            log.extend(entries)
            return
        new = self.first_new(entries)
        if new == len(entries):
            return
        index = entries[new].index
        if index <= self._commitment.index:
            raise InvariantViolation(f"a leader would overwrite entry {index}, which is committed")
        if index <= log.last_index:
            log.cut(index)
        log.extend(entries[new:])
