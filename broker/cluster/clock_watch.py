"""Watches this node's clock: logs changes, reports health, gives up leaderships when it is wrong.

Owns: when a change is logged, and the leadership transfers of a node whose clock is wrong.
May not touch: the time of the cluster itself (raft/clock).
Spec: docs/decisions/0020-cluster-time.md."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from raft.clock.boot_clock import boot_ns
from raft.clock.cluster_time import ClockVerdict

logger = logging.getLogger("jetraft.cluster")

CHECK_EVERY_S: Final = 1.0  # longer than a transfer of leadership may take
LEAP_NS: Final = 500_000_000  # a larger change between two checks is a jump, not a correction
WRONG: Final = "%s: it leads no streams until the clock is set right"
RIGHT: Final = "the clock of this node agrees with the time of the cluster"
IN_DOUBT: Final = (
    "no majority of the members' clocks is known and agrees on the time: this node goes by the "
    "earliest clock it knows. Check the clocks of all nodes"
)


class WatchedClock(Protocol):
    """raft.clock.cluster_clock.ClusterClock, as far as this module uses it."""

    @property
    def verdict(self) -> ClockVerdict: ...
    @property
    def own_error_ns(self) -> int: ...
    def in_doubt(self) -> bool: ...
    def now_ns(self) -> int: ...


@dataclass(slots=True)
class ClockWatch:
    """`run` is a task of the node."""

    clock: WatchedClock
    give_up_leadership: Callable[[], None]  # to nodes whose clocks are right
    stepped: Callable[[], None]  # the time has jumped: timers set for a date must be set again
    steady_ns: Callable[[], int] = boot_ns
    _distance_ns: int | None = None  # cluster time minus the steady clock, at the last check
    _said: str | None = None

    def trouble(self) -> str | None:
        """What is wrong with the clock of this node, or with all clocks."""
        if self.clock.verdict is ClockVerdict.DISAGREES:
            seconds = self.clock.own_error_ns / 1e9
            way = "ahead of" if seconds > 0 else "behind"
            return f"the clock of this node is {abs(seconds):.1f} s {way} the time of the cluster"
        return IN_DOUBT if self.clock.in_doubt() else None

    async def run(self) -> None:
        while True:
            self._check()
            await asyncio.sleep(CHECK_EVERY_S)

    def _check(self) -> None:
        distance_ns = self.clock.now_ns() - self.steady_ns()
        before_ns, self._distance_ns = self._distance_ns, distance_ns
        if before_ns is not None and abs(distance_ns - before_ns) > LEAP_NS:
            self.stepped()
        trouble = self.trouble()
        wrong = self.clock.verdict is ClockVerdict.DISAGREES
        state = WRONG if wrong else trouble
        if state != self._said:  # the seconds in the sentence may vary
            self._said = state
            if trouble is None:
                logger.info(RIGHT)
            elif wrong:
                logger.error(WRONG, trouble)
            else:
                logger.error(IN_DOUBT)
        if wrong:
            self.give_up_leadership()
