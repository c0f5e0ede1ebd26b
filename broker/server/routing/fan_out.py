"""Delivers one piece of a run to several recipients, in one turn or over several.

Owns: which recipients already have the piece, and the choice of a member of each queue group.
May not touch: who the recipients are (router.py), sockets, when a turn begins.
Spec: NATS client protocol, SUB with a queue group and with max_msgs. Each subscription gets the
messages of a publisher in order: later messages of the publisher wait until the piece is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import randrange
from typing import TYPE_CHECKING, Protocol

from broker.subjects import Match, PublishingConnection, Sink, Subscription

if TYPE_CHECKING:
    from broker.wire import PubRun

LOOK_EVERY = 256  # recipients between two readings of the clock
LOOK_BYTES = 64 << 10  # or bytes, if that is sooner


class FanningPublisher(PublishingConnection, Protocol):
    @property
    def groups(self) -> frozenset[bytes] | None: ...
    def skips(self, sink: Sink) -> bool: ...


class FanOut:
    """`covered`: every message before this row was delivered to at least one recipient."""

    __slots__ = ("_at", "_found", "covered", "run", "start", "stop")

    def __init__(self, found: Match, run: PubRun, start: int, stop: int) -> None:
        self.run = run
        self.start = start
        self.stop = stop
        self.covered = start
        self._found = found
        self._at = 0  # number of plain subscriptions that have the piece

    def go_on(self, publisher: FanningPublisher, deadline: float) -> bool:
        """Deliver until the deadline. Returns whether all recipients have the piece."""
        run, start, stop, skips = self.run, self.start, self.stop, publisher.skips
        plain = self._found.plain
        share = LOOK_EVERY
        if len(plain) > share:
            share = max(1, min(share, LOOK_BYTES // (run.size(start, stop) + 1)))
        while self._at < len(plain):
            for sub in plain[self._at : self._at + share]:
                if not skips(sub.sink):
                    taken = deliver_limited(sub, run, start, stop, publisher)
                    self.covered = max(self.covered, taken)
            self._at += share
            if self._at < len(plain) and time.perf_counter() > deadline:
                return False
        self._to_groups(publisher)
        return True

    def _to_groups(self, publisher: FanningPublisher) -> None:
        run, stop, skips, groups = self.run, self.stop, publisher.skips, publisher.groups
        found = self._found
        for pool in found.queues:
            if groups is not None and pool[0].queue not in groups:
                continue
            reached = deal(pool, run, self.start, stop, publisher, skips=skips)
            if reached < stop and found.spare is not None:
                spare = found.spare.get(pool[0].queue)
                if spare:
                    reached = deal(spare, run, reached, stop, publisher, skips=skips)
            self.covered = max(self.covered, reached)


def deliver_limited(
    sub: Subscription, run: PubRun, start: int, stop: int, publisher: PublishingConnection | None
) -> int:
    """Deliver up to the limit of the subscription; returns the row after the last one taken."""
    if sub.max_msgs:
        stop = min(stop, start + sub.max_msgs - sub.delivered)
    if stop <= start or not sub.sink.deliver_run(sub, run, start, stop, publisher):
        return start
    return stop


def deal(
    pool: list[Subscription],
    run: PubRun,
    start: int,
    stop: int,
    publisher: PublishingConnection | None,
    *,
    skips: Callable[[Sink], bool],
) -> int:
    """Divide the rows between the members of a queue group, in slices, starting at a random member.

    A slice that a member refuses goes to the next member. Returns the row after the last one that
    was taken."""
    count = len(pool)
    turn = randrange(count) if count > 1 else 0
    share = -(-(stop - start) // count)
    row = start
    refusals = 0
    while row < stop and refusals < count:
        sub = pool[turn]
        turn = (turn + 1) % count
        end = min(row + share, stop)
        taken = row
        if not sub.closed and not skips(sub.sink):
            taken = deliver_limited(sub, run, row, end, publisher)
        if taken == row:
            refusals += 1
        else:
            refusals = 0
            row = taken
    return row
