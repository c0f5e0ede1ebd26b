"""What a leader knows about one peer's log, and how much it may send there.

Owns: match and next index, the probe / replicate / snapshot state, the window of appends in flight.
May not touch: the log, messages, other peers.
Spec: Raft section 5.3 (nextIndex, matchIndex); thesis 10.2.1 (pipelining)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from raft.types import Index

_NOTHING = Index(0)


class ProgressState(Enum):
    PROBE = "probe"  # where the logs agree is not known: one append at a time
    REPLICATE = "replicate"  # appends are pipelined, next runs ahead of match
    SNAPSHOT = "snapshot"  # the entries it needs are cut away: a snapshot is on its way


@dataclass(slots=True)
class Progress:
    """Invariant: match < next. `match` only grows while this leader leads, but for a peer that
    has lost its log and says so."""

    next: Index
    voter: bool
    match: Index = _NOTHING
    state: ProgressState = ProgressState.PROBE
    paused: bool = False  # PROBE: an append is out and unanswered
    active: bool = False  # heard from since the last quorum check
    told_commit: Index = _NOTHING  # the commit index this peer will know if nothing was lost
    match_at_heartbeat: Index = _NOTHING
    round_answered: int = 0  # the latest heartbeat round it answered
    life: int = 0  # how often it has lost its log (raft.member); what earlier lives said is void
    recovering: bool = False  # it wants to be told where our log ends
    inflight: deque[Index] = field(default_factory=deque)  # last index of each append on its way

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
        """The peer says that its log is gone: what it told us of it holds no more."""
        self.life = life
        self.match = self.told_commit = self.match_at_heartbeat = _NOTHING
        self.probe(following=_NOTHING)

    def may_send(self, window: int) -> bool:
        if self.state is ProgressState.REPLICATE:
            return len(self.inflight) < window
        return not self.paused

    def sent(self, last: Index) -> None:
        """Entries up to `last` went out in one append."""
        if self.state is ProgressState.REPLICATE:
            self.next = Index(last + 1)
            self.inflight.append(last)
        else:
            self.paused = True

    def accepted(self, index: Index) -> bool:
        """The peer holds our log up to index. Whether that is news."""
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

        False when the answer is stale: it speaks of an append we have moved past."""
        if self.state is ProgressState.REPLICATE:
            if refused <= self.match:
                return False
            self.probe(following=self.match)
            return True
        if self.state is ProgressState.SNAPSHOT or refused != self.next - 1:
            return False
        self.probe(following=Index(min(agree_at, refused - 1)))
        return True
