"""Reads that see everything committed before they were asked for, without a log entry.

Owns: heartbeat rounds of one term of leadership, reads that wait for one, the leader's lease.
May not touch: messages, the log, peers (Leading tells what they answered), clocks.
Spec: thesis 6.4 (read index), 6.4.1 (lease). A read notes the commit index and waits until a
majority has answered a heartbeat round that began after it: then no newer leader had been elected
when the read began. Before the term's first commit the commit index itself is not known, so reads
are put off until then.

The lease begins when a round is sent that a majority answered. Followers give no vote for an
election timeout after that, by their own count of ticks; the lease lasts half as long by ours."""

from __future__ import annotations

from collections import deque

from raft.core.ready import ReadState
from raft.types import Index

FIRST_ROUND = 1


class Reads:
    __slots__ = ("_early", "_lease_from", "_sent", "_waiting", "confirmed", "round", "wanted")

    def __init__(self) -> None:
        self.round = FIRST_ROUND - 1  # the last round sent
        self.confirmed: list[ReadState] = []
        self.wanted = False  # a read waits for a round that is not sent yet
        self._early: list[int] = []  # contexts of reads before the term's first commit
        self._waiting: deque[tuple[int, ReadState]] = deque()  # with the round they need
        self._sent: deque[tuple[int, int]] = deque()  # round, our tick when it was sent
        self._lease_from: int | None = None

    def ask(self, context: int, commit: Index | None) -> None:
        """`commit` is None as long as no entry of our term is committed."""
        if commit is None:
            self._early.append(context)
        else:
            self._waiting.append((self.round + 1, ReadState(context, commit)))
            self.wanted = True

    def first_commit(self, commit: Index) -> None:
        """An entry of our term is committed: from here on our commit index is the group's."""
        early, self._early = self._early, []
        for context in early:
            self.ask(context, commit)

    def begin_round(self, now: int) -> int:
        self.round += 1
        self.wanted = False
        self._sent.append((self.round, now))
        return self.round

    def answered(self, round_number: int) -> None:
        """A majority has answered this round or a later one."""
        self._confirm(round_number)
        while self._sent and self._sent[0][0] <= round_number:
            self._lease_from = self._sent.popleft()[1]

    def _confirm(self, round_number: int) -> None:
        while self._waiting and self._waiting[0][0] <= round_number:
            self.confirmed.append(self._waiting.popleft()[1])

    def confirm_by_lease(self) -> None:
        """What waits is confirmed without an answer, which leaves the lease as it is."""
        self._confirm(self.round + 1)

    def lease_holds(self, now: int, *, lease_ticks: int) -> bool:
        return self._lease_from is not None and now - self._lease_from < lease_ticks

    def end_lease(self) -> None:
        """Votes may be given despite it (transfer), or our ticks no longer tell the time."""
        self._lease_from = None
        self._sent.clear()

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._early or self.confirmed)
