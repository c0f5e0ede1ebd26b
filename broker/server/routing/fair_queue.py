"""Work that took its time waits here until others had theirs.

Owns: one queue for the whole server, of which each round of the loop does about one turn's worth.
May not touch: what the work is; it is a callback.
A turn of each of forty clients in every round would be a fifth of a second for all others.
Spec: architecture, invariant 6."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

TURN_S = 0.005  # after it the work of a client or of a stream waits until others had their turn


class FairQueue:
    """First come, first served. Each callback is called once."""

    __slots__ = ("_due", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._due = False

    def wait(self, act: Callable[[], None]) -> None:
        """Do it in a later round of the loop."""
        self._waiting.append(act)
        self._schedule()

    def _schedule(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        self._due = False
        deadline = perf_counter() + TURN_S
        try:
            for _ in range(len(self._waiting)):
                self._waiting.popleft()()
                if perf_counter() > deadline:
                    break
        finally:  # one that raises is reported by the loop, and ends no turn but its own
            if self._waiting:
                self._schedule()
