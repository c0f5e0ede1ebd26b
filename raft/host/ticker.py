"""Real time for all groups of a node: when the next tick is due, and how punctual ticks are.

Owns: the next deadline, the lag of the event loop, the times of the last ticks.
May not touch: groups; it calls the function it was given.
Spec: a loop that lags is measured and reported, because a stalled loop causes false elections.
Ticks that were missed count as one, so that a stall of this process is not taken for silence of
the others. Raft thesis 6.4.1: a lease that is counted in ticks is valid only while ticks keep
time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from raft.clock.boot_clock import boot_seconds

_SOCKET_GRACE_SECONDS: Final = 0.002  # after a stall, read what waits in the sockets first


class TickPace:
    """How long ticks took. `now` is in seconds of a clock that keeps running while the process is
    stopped and while the machine is suspended."""

    def __init__(self, *, tick_seconds: float, lease_ticks: int) -> None:
        self._lease_seconds = lease_ticks * tick_seconds
        self._ticks: deque[float] = deque(maxlen=lease_ticks)

    def ticked(self, now: float) -> None:
        self._ticks.append(now)

    def interrupted(self) -> None:
        """Groups have missed ticks: what they counted so far says nothing about time."""
        self._ticks.clear()

    def within_lease(self, age_ticks: int, now: float) -> bool:
        """Whether a lease that began this many ticks ago, or within the tick after that, still
        holds by the clock."""
        ticks = self._ticks
        return age_ticks < len(ticks) and now - ticks[-1 - age_ticks] < self._lease_seconds


class Ticker:
    def __init__(self, *, tick_ms: int, lease_ticks: int) -> None:
        self.ticks = self.late = 0
        self.lag_last = self.lag_max = 0.0
        self._seconds = tick_ms / 1000
        self.pace = TickPace(tick_seconds=self._seconds, lease_ticks=lease_ticks)

    async def run(self, tick: Callable[[], None], stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._seconds
        while not stop.is_set():
            try:
                async with asyncio.timeout_at(due):
                    await stop.wait()
            except TimeoutError:
                woke = loop.time()
            else:
                return
            lag = woke - due
            if lag > self._seconds:
                self.late += 1
                await asyncio.sleep(_SOCKET_GRACE_SECONDS)
                now = loop.time()
                lag = max(lag, now - woke - _SOCKET_GRACE_SECONDS)  # it may stall here as well
                due = now + self._seconds
            else:
                due += self._seconds
            self.lag_last = lag
            self.lag_max = max(self.lag_max, lag)
            self.ticks += 1
            self.pace.ticked(boot_seconds())
            tick()
