"""Linearizable reads without a log entry: the read index, and the leader's lease.

Owns: the heartbeat rounds of one term of leadership, the reads that wait for one, the lease.
May not touch: messages, the log, peers (LeaderState reports what they answered), clocks.
Spec: thesis 6.4 (read index), 6.4.1 (lease).

Read index: a read notes the commit index and waits until a majority has answered a heartbeat round
that began after it. That proves that no newer leader had been elected when the read began. Until
the leader has committed an entry of its own term it does not know the commit index of the group,
so earlier reads wait for that first.

Lease: clients that read often would ask for a round each. While there are reads, rounds also ask
for a promise: the follower grants no vote, and does not campaign, for CoreConfig.promise_ticks
after it heard the round, whatever happens to its links and also after a restart. The lease begins
when a round is sent that a majority then promises, and ends CoreConfig.lease_ticks later, by ticks
and by the clock (raft/host/ticker.py). Nobody promises anything while nobody reads, so that the
next leader is elected without delay; a group that sleeps has no lease. A lease does not survive a
change of the members, whose majority may be another one, nor a transfer of leadership."""

from __future__ import annotations

from collections import deque

from raft.core.ready import ReadState
from raft.types import Index

FIRST_ROUND = 1
WANTED_TICKS = 10  # after a read, rounds ask for promises for as long


class LeaderLease:
    """The time in which no other leader can be elected. Times are this leader's ticks."""

    __slots__ = ("_from", "_read_at", "_revoked", "_sent")

    def __init__(self) -> None:
        self._sent: deque[tuple[int, int]] = deque()  # round, tick when it was sent
        self._from: int | None = None  # tick when the last confirmed round was sent
        self._revoked = False
        self._read_at: int | None = None  # tick of the last read

    def read(self, now: int) -> None:
        """There was a read: more will follow."""
        self._read_at = now

    def is_wanted(self, now: int) -> bool:
        """Whether to ask for promises."""
        return self.read_within(WANTED_TICKS, now) and not self._revoked

    def read_within(self, ticks: int, now: int) -> bool:
        return self._read_at is not None and now - self._read_at <= ticks

    def sent(self, round_number: int, now: int) -> None:
        """A round that asks for promises."""
        self._sent.append((round_number, now))

    def promised(self, round_number: int) -> None:
        """A majority has promised in this round or a later one."""
        while self._sent and self._sent[0][0] <= round_number:
            self._from = self._sent.popleft()[1]

    def age(self, now: int) -> int | None:
        """The number of ticks since the round was sent that began the lease."""
        return None if self._from is None else now - self._from

    def end(self) -> None:
        """The next round that a majority promises begins a new lease."""
        self._from = None
        self._sent.clear()

    def revoke(self) -> None:
        """Votes may be granted in spite of it (transfer): this term gets no further lease."""
        self.end()
        self._revoked = True


class ReadIndex:
    """The reads of one term of leadership."""

    __slots__ = ("_early", "_waiting", "confirmed", "lease", "round", "wants_round")

    def __init__(self) -> None:
        self.lease = LeaderLease()
        self.round = FIRST_ROUND - 1  # the last round sent
        self.confirmed: list[ReadState] = []
        self.wants_round = False  # a read waits for a round that is not sent yet
        self._early: list[int] = []  # contexts of reads before the term's first commit
        self._waiting: deque[tuple[int, ReadState]] = deque()  # with the round they need

    def ask(self, context: int, commit: Index | None) -> None:
        """`commit` is None as long as no entry of our term is committed."""
        if commit is None:
            self._early.append(context)
        else:
            self._waiting.append((self.round + 1, ReadState(context, commit)))
            self.wants_round = True

    def first_commit(self, commit: Index) -> None:
        """An entry of our term is committed: from here on our commit index is the group's."""
        early, self._early = self._early, []
        for context in early:
            self.ask(context, commit)

    def begin_round(self, now: int) -> bool:
        """The next heartbeat round is sent at tick `now`. Returns whether to ask for promises."""
        self.round += 1
        self.wants_round = False
        if not self.lease.is_wanted(now):
            return False
        self.lease.sent(self.round, now)
        return True

    def answered(self, round_number: int) -> None:
        """A majority has answered this round or a later one."""
        while self._waiting and self._waiting[0][0] <= round_number:
            self.confirmed.append(self._waiting.popleft()[1])

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._early or self.confirmed)
