"""Linearizable reads without a log entry: the read index, and the leader's lease.

Owns: the heartbeat rounds of one term of leadership, the reads that wait for one, the lease.
May not touch: messages, the log, peers (LeaderState reports what they answered), clocks.
Spec: thesis 6.4 (read index), 6.4.1 (lease).

Read index: a read notes the commit index and waits until a majority has answered a heartbeat round
that began after it. That proves that no newer leader had been elected when the read began. Until
the leader has committed an entry of its own term it does not know the commit index of the group,
so earlier reads wait for that first.

Lease: it begins when a round is sent that a majority then answers. Followers grant no vote for an
election timeout after they heard that round, by their own count of ticks; the lease lasts half as
long by ours."""

from __future__ import annotations

from collections import deque

from raft.core.ready import ReadState
from raft.types import Index

FIRST_ROUND = 1


class LeaderLease:
    """The time in which no other leader can be elected. Times are this leader's ticks."""

    __slots__ = ("_from", "_revoked", "_sent")

    def __init__(self) -> None:
        self._sent: deque[tuple[int, int]] = deque()  # round, tick when it was sent
        self._from: int | None = None  # tick when the last confirmed round was sent
        self._revoked = False

    def sent(self, round_number: int, now: int) -> None:
        if not self._revoked:
            self._sent.append((round_number, now))

    def answered(self, round_number: int) -> None:
        """A majority has answered this round or a later one."""
        while self._sent and self._sent[0][0] <= round_number:
            self._from = self._sent.popleft()[1]

    def holds(self, now: int, *, lease_ticks: int) -> bool:
        return self._from is not None and now - self._from < lease_ticks

    def end(self) -> None:
        """Our ticks no longer measure time. The next confirmed round begins a new lease."""
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

    def begin_round(self, now: int) -> int:
        """A heartbeat round is sent at tick `now`. Returns its number."""
        self.round += 1
        self.wants_round = False
        self.lease.sent(self.round, now)
        return self.round

    def answered(self, round_number: int) -> None:
        """A majority has answered this round or a later one."""
        self._confirm(round_number)
        self.lease.answered(round_number)

    def confirm_all(self) -> None:
        """The lease holds: waiting reads need no round. This does not extend the lease."""
        self._confirm(self.round + 1)

    def _confirm(self, round_number: int) -> None:
        while self._waiting and self._waiting[0][0] <= round_number:
            self.confirmed.append(self._waiting.popleft()[1])

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._early or self.confirmed)
