"""Real time for all groups of a node: when the next tick is due, and how punctual ticks are.

Owns: the next deadline, the lag of the event loop, the times of the last ticks.
May not touch: groups; it calls the function it was given.
Spec: the lag of the loop is measured and reported, because a stalled loop causes false elections.
Missed ticks count as one, so that a stall of this process is not taken for silence of the others.
Raft thesis 6.4.1: a lease that is counted in ticks is valid only while ticks are on time."""

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
        """Groups have missed ticks: the ticks counted so far do not measure time."""
        self._ticks.clear()

    def within_lease(self, age_ticks: int, now: float) -> bool:
        """Whether a lease that began this many ticks ago, or within the tick after that, still
        holds by the clock."""
        ticks = self._ticks
        return age_ticks < len(ticks) and now - ticks[-1 - age_ticks] < self._lease_seconds


class Ticker:
    _loop: asyncio.AbstractEventLoop
    _tick: Callable[[], None]

    def __init__(self, *, tick_ms: int, lease_ticks: int) -> None:
        self.ticks = self.late = 0
        self.lag_last = self.lag_max = 0.0
        self._seconds = tick_ms / 1000
        self._stopped = False
        self._ended: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.pace = TickPace(tick_seconds=self._seconds, lease_ticks=lease_ticks)

    async def run(self, tick: Callable[[], None]) -> None:
        """Runs until `stop`. Raises what `tick` raises. `tick` is called by a callback of the loop,
        which is cheaper than waking a task: ticks are most of what an idle node does."""
        loop = asyncio.get_running_loop()
        self._tick, self._loop, self._ended = tick, loop, loop.create_future()
        if self._stopped:
            return
        self._due = loop.time() + self._seconds
        self._timer = loop.call_at(self._due, self._woken)
        try:
            await self._ended
        finally:
            self._timer.cancel()

    def stop(self) -> None:
        """No more ticks after this call, not even one that is due."""
        self._stopped = True
        self._end(None)

    def _woken(self) -> None:
        woke = self._loop.time()
        if woke - self._due <= self._seconds:
            due, self._due = self._due, self._due + self._seconds
            self._ticked(woke - due)
        else:
            self.late += 1
            lag = woke - self._due
            self._timer = self._loop.call_later(_SOCKET_GRACE_SECONDS, self._stalled, woke, lag)

    def _stalled(self, woke: float, lag: float) -> None:
        now = self._loop.time()
        self._due = now + self._seconds
        self._ticked(max(lag, now - woke - _SOCKET_GRACE_SECONDS))  # it may stall here as well

    def _ticked(self, lag: float) -> None:
        self.lag_last = lag
        self.lag_max = max(self.lag_max, lag)
        self.ticks += 1
        self.pace.ticked(boot_seconds())
        self._timer = self._loop.call_at(self._due, self._woken)
        try:
            self._tick()
        except Exception as error:  # noqa: BLE001 - raised in `run`
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
