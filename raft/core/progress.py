"""What a leader knows about its peers' logs: one Progress per peer, and what majorities hold.

Owns: match and next index of each peer, its probe / replicate / snapshot state, the window of
appends in flight; the voters grouped by the majorities that a decision needs.
May not touch: the log, messages, the commit index.
Spec: Raft section 5.3 (nextIndex, matchIndex), section 6 (joint majorities); thesis 10.2.1
(pipelining)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from raft.core.quorum import majority, majority_index
from raft.types import Index

_NOTHING = Index(0)


class ProgressState(Enum):
    PROBE = "probe"  # it is not known where the logs agree: one append at a time
    REPLICATE = "replicate"  # appends are pipelined, next runs ahead of match
    SNAPSHOT = "snapshot"  # the entries that the peer needs are compacted: it gets a snapshot


@dataclass(slots=True)
class Progress:
    """Invariant: match < next. `match` never decreases while this leader leads, except for a
    peer that reports that it has lost its log."""

    next: Index
    voter: bool
    match: Index = _NOTHING
    state: ProgressState = ProgressState.PROBE
    paused: bool = False  # PROBE: an append is in flight and not answered
    active: bool = False  # heard from since the last quorum check
    sent_commit: Index = _NOTHING  # the commit index this peer will know if no message is lost
    match_at_heartbeat: Index = _NOTHING
    round_answered: int = 0  # the latest heartbeat round it answered
    round_promised: int = 0  # the latest one in which it promised not to vote
    life: int = 0  # how often it has lost its log; answers of earlier lives are void
    recovering: bool = False  # it lost its log and needs to know where ours ends
    inflight: deque[Index] = field(default_factory=deque)  # last index of each append in flight

    def probe(self, *, following: Index) -> None:
        """Send one append after `following` and wait for the answer."""
        self.state = ProgressState.PROBE
        self.next = Index(max(following, self.match) + 1)
        self.paused = False
        self.inflight.clear()

    def replicate(self) -> None:
        self.state = ProgressState.REPLICATE
        self.next = Index(self.match + 1)
        self.paused = False
        self.match_at_heartbeat = self.match
        self.inflight.clear()

    def await_snapshot(self) -> None:
        self.state = ProgressState.SNAPSHOT
        self.paused = True
        self.inflight.clear()

    def start_over(self, life: int) -> None:
        """The peer reports that it has lost its log: forget everything it confirmed."""
        self.life = life
        self.match = self.sent_commit = self.match_at_heartbeat = _NOTHING
        self.probe(following=_NOTHING)

    def may_send(self, window: int) -> bool:
        if self.state is ProgressState.REPLICATE:
            return len(self.inflight) < window
        return not self.paused

    def sent(self, last: Index) -> None:
        """Entries up to `last` were sent in one append."""
        if self.state is ProgressState.REPLICATE:
            self.next = Index(last + 1)
            self.inflight.append(last)
        else:
            self.paused = True

    def accepted(self, index: Index) -> bool:
        """The peer holds our log up to index. Returns whether match moved."""
        inflight = self.inflight
        while inflight and inflight[0] <= index:
            inflight.popleft()
        if index <= self.match:
            return False
        self.match = index
        if self.next <= index:
            self.next = Index(index + 1)
        return True

    def rejected(self, refused: Index, *, agree_at: Index) -> bool:
        """The peer refused an append after `refused`; the logs may agree at `agree_at`.

        Returns False when the answer is stale: it is about an append we have moved past."""
        if self.state is ProgressState.REPLICATE:
            if refused <= self.match:
                return False
            self.probe(following=self.match)
            return True
        if self.state is ProgressState.SNAPSHOT or refused != self.next - 1:
            return False
        self.probe(following=Index(min(agree_at, refused - 1)))
        return True


class VoterProgress:
    """The voters' progress, one set for each majority that a decision needs: one set as a rule,
    two in a joint phase.

    A set is a pair: whether this leader is one of the voters, and the progress of the others."""

    __slots__ = ("_sets", "leader_alone")

    def __init__(self, sets: list[tuple[bool, list[Progress]]]) -> None:
        self._sets = sets
        # Whether this leader is the only voter: nobody can be elected without its vote.
        self.leader_alone = all(leader_votes and not others for leader_votes, others in sets)

    def match(self, own: Index) -> Index:
        """The largest index that every needed majority holds; `own` is what this leader holds."""
        if self.leader_alone:
            return own
        lowest = -1
        for leader_votes, others in self._sets:
            held: list[int] = [peer.match for peer in others]
            if leader_votes:
                held.append(own)
            index = majority_index(held)
            if lowest < 0 or index < lowest:
                lowest = index
        return Index(lowest)

    def round_answered(self, own: int) -> int:
        """The latest heartbeat round that every needed majority has answered."""
        return self._round_of_majority(own, lambda peer: peer.round_answered)

    def round_promised(self, own: int) -> int:
        """The latest heartbeat round in which every needed majority has promised not to vote."""
        return self._round_of_majority(own, lambda peer: peer.round_promised)

    def _round_of_majority(self, own: int, latest: Callable[[Progress], int]) -> int:
        if self.leader_alone:
            return own
        lowest = -1
        for leader_votes, others in self._sets:
            rounds = [latest(peer) for peer in others]
            if leader_votes:
                rounds.append(own)
            number = majority_index(rounds)
            if lowest < 0 or number < lowest:
                lowest = number
        return lowest

    def is_majority(self, counts: Callable[[Progress], bool]) -> bool:
        """Whether the voters that count, together with this leader, are a majority of every set."""
        for leader_votes, others in self._sets:
            if leader_votes + sum(map(counts, others)) < majority(leader_votes + len(others)):
                return False
        return True
