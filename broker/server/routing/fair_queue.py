"""Fair queue: work that used up its time slice waits until the other work has had its own.

Owns: one queue for the whole server; each turn of the event loop runs about one time slice of it.
May not touch: what the work is; it is a callback.
Without the queue, forty busy clients with a slice each would block the loop for 0.2 s per turn.
Spec: docs/ARCHITECTURE.md, "Invariants": nothing blocks the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

TURN_S = 0.005  # the time slice of a client or a stream


class FairQueue:
    """First come, first served. Each callback is called once."""

    __slots__ = ("_due", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._due = False

    def wait(self, act: Callable[[], None]) -> None:
        """Call it in a later turn of the event loop."""
        self._waiting.append(act)
        self._schedule()

    def _schedule(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        deadline = time.perf_counter() + TURN_S
        try:
            for _ in range(len(self._waiting)):
                self._waiting.popleft()()
                if time.perf_counter() > deadline:
                    break
        finally:  # a callback that raises is reported by the loop; the others still run
            if self._waiting:
                self._schedule()
