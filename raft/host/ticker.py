"""Real time for all groups of a node: one tick after the other, and how late they come.

Owns: when the next tick is due, the lag of the loop.
May not touch: groups; it calls what it was given.
Spec: DESIGN section 6. A loop that lags is measured and reported. Ticks that were missed count as
one, so that a stall of our own is not taken for the silence of others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from raft.host.tick_pace import TickPace

_SOCKET_GRACE_SECONDS: Final = 0.002  # after a stall, what waits in the sockets comes first


class Ticker:
    def __init__(self, *, tick_ms: int, election_ticks: int) -> None:
        self.ticks = self.late = 0
        self.lag_last = self.lag_max = 0.0
        self._seconds = tick_ms / 1000
        self.pace = TickPace(tick_seconds=self._seconds, election_ticks=election_ticks)

    async def run(self, tick: Callable[[], None], stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._seconds
        while not stop.is_set():
            try:
                async with asyncio.timeout_at(due):
                    await stop.wait()
            except TimeoutError:
                lag = loop.time() - due
            else:
                return
            self.lag_last = lag
            self.lag_max = max(self.lag_max, lag)
            if lag > self._seconds:
                self.late += 1
                await asyncio.sleep(_SOCKET_GRACE_SECONDS)
                due = loop.time() + self._seconds
            else:
                due += self._seconds
            self.ticks += 1
            self.pace.ticked(time.monotonic())
            tick()
