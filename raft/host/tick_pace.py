"""How evenly a host's ticks come, and so how much they tell about time.

Owns: when the last ticks were.
May not touch: groups. `now` is an argument, in seconds of a clock that goes on while the process
is stopped.
Spec: thesis 6.4.1: a lease counted in ticks is worth something only while ticks keep time."""

from __future__ import annotations

from collections import deque


class TickPace:
    def __init__(self, *, tick_seconds: float, election_ticks: int) -> None:
        # Others may elect a leader an election timeout after they heard of us. The ticks that a
        # lease may last (half of it) have to fit into that with room to spare.
        self._lease_seconds_max = 0.8 * election_ticks * tick_seconds
        self._ticks: deque[float] = deque(maxlen=election_ticks // 2 + 1)

    def ticked(self, now: float) -> None:
        self._ticks.append(now)

    def interrupted(self) -> None:
        """Groups have missed ticks: what they counted until now tells nothing."""
        self._ticks.clear()

    def keeps_time(self, now: float) -> bool:
        """Whether a lease that holds by the count of ticks holds by the clock."""
        ticks = self._ticks
        return len(ticks) == ticks.maxlen and now - ticks[0] <= self._lease_seconds_max
