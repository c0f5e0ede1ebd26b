"""Marzullo's algorithm: the interval that the most clocks agree on.

Owns: the computation.
May not touch: clocks; it gets intervals.
Spec: Keith Marzullo, "Maintaining the Time in a Distributed System" (1984). Each source says that
the right value is within its interval; the answer is the intersection of as many as possible."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """Both ends belong to it."""

    low: int
    high: int

    def meets(self, other: Interval) -> bool:
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True)
class Agreement:
    sources: int  # how many intervals contain it
    interval: Interval


def agreement(intervals: Iterable[Interval]) -> Agreement | None:
    """The first one, if several are contained in the same number of intervals. None: no
    intervals."""
    # At the same point a beginning comes before an end: intervals that touch agree.
    edges = sorted(edge for one in intervals for edge in ((one.low, -1), (one.high, 1)))
    best: Agreement | None = None
    open_now = 0
    for position, (point, kind) in enumerate(edges):
        open_now -= kind
        if kind < 0 and (best is None or open_now > best.sources):
            # The next edge ends this intersection, or begins a better one.
            best = Agreement(open_now, Interval(point, edges[position + 1][0]))
    return best
