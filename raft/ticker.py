"""Real time for all groups of a node: one tick after the other, and how late they come.

Owns: when the next tick is due, the lag of the loop.
May not touch: groups; it calls what it was given.
Spec: DESIGN section 6. A loop that lags is measured and reported. Ticks that were missed count as
one, so that a stall of our own is not taken for the silence of others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_SOCKET_GRACE_SECONDS: Final = 0.002  # after a stall, what waits in the sockets comes first


class Ticker:
    def __init__(self, *, tick_ms: int) -> None:
        self.ticks = self.late = 0
        self.lag_last = self.lag_max = 0.0
        self._seconds = tick_ms / 1000
        self._ticked_at = 0.0
        self._punctual_from = 0  # the tick since which none was late

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
                self.interrupted()
                await asyncio.sleep(_SOCKET_GRACE_SECONDS)
                due = loop.time() + self._seconds
            else:
                due += self._seconds
            self._ticked_at = loop.time()
            self.ticks += 1
            tick()

    def interrupted(self) -> None:
        """The groups have missed time: nothing that trusts their ticks may hold for a while."""
        self._punctual_from = self.ticks

    def punctual(self, *, for_ticks: int) -> bool:
        """Whether all of the last ticks, and a few more than these, came in time."""
        now = asyncio.get_running_loop().time()
        return (
            now - self._ticked_at <= 2 * self._seconds
            and self.ticks - self._punctual_from > for_ticks
        )
