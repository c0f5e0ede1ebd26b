"""The commit rule: which entries count as committed.

Owns: the commit index of one member. It never decreases.
May not touch: what follows from a commit (the leader's reads, the end of a membership change, the
state machine), messages, disk.
Spec: Raft sections 5.3 and 5.4.2 with figure 8; section 6 (a joint phase needs both majorities);
thesis 10.2.1 (the leader counts its own log as far as it is flushed, like any voter's)."""

from __future__ import annotations

from raft.core.log import RaftLog
from raft.core.progress import VoterProgress
from raft.types import Index, InvariantViolation


class Commitment:
    """`index` is the commit index. Invariant: index <= log.last_index."""

    __slots__ = ("_log", "index")

    def __init__(self, log: RaftLog, *, stored: Index) -> None:
        self._log = log
        # A stored commit index only saves work; a torn write may leave it ahead of the log.
        self.index: Index = max(min(stored, log.last_index), log.snapshot().index)

    # -- as leader

    def advance(self, voters: VoterProgress, *, term_start: Index) -> bool:
        """Commit what a quorum holds. Returns whether the commit index moved."""
        index = self.quorum_match(voters)
        if not self.may_commit(index, term_start=term_start):
            return False
        self.index = index
        return True

    def quorum_match(self, voters: VoterProgress) -> Index:
        """The largest index that a majority of voters, ourselves included, has flushed to disk."""
        return voters.match(self._log.persisted)

    def may_commit(self, index: Index, *, term_start: Index) -> bool:
        """Whether a quorum that holds `index` commits it. `term_start` is the first entry of the
        leader's own term.

        A leader counts replicas only for entries of its own term (section 5.4.2). An entry of an
        earlier term may be on a majority and still be overwritten by a later leader (figure 8);
        it is committed together with the first entry of the leader's own term."""
        return index > self.index and index >= term_start

    # -- as follower

    def follow_leader(self, index: Index) -> None:
        """The leader says that entries up to index are committed and that our log holds them."""
        if index > self.index:
            if index > self._log.last_index:
                raise InvariantViolation(
                    f"the leader counts on our entries up to {index}, but our log ends at "
                    f"{self._log.last_index}: the disk lost what it had flushed"
                )
            self.index = index

    # -- restart and snapshot

    def raise_to(self, index: Index) -> None:
        """Everything up to index is known to be committed: it was applied, or is in a snapshot."""
        self.index = max(self.index, index)
