"""Deadlines of the delivery engines of one stream: which engine needs attention next, and when.

Owns: a heap of deadlines with at most one live entry per engine.
May not touch: clocks, timers; `now` is an argument (leadership.py arms the timer)."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar


class TimedEngine(Protocol):
    def next_deadline(self) -> int | None:
        """Wall time in nanoseconds; None when nothing is timed."""


Engine = TypeVar("Engine", bound=TimedEngine)


class DeliveryDeadlines(Generic[Engine]):
    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Engine]] = []
        self._live: dict[Engine, int] = {}  # the deadline of each engine; other entries are stale
        self._serial = count()  # orders entries of the same time

    def update(self, engine: Engine) -> None:
        """The engine has run: note its deadline. If it moved later, the old entry fires first and
        is then replaced."""
        at = engine.next_deadline()
        known = self._live.get(engine)
        if at is not None and (known is None or at < known):
            self._live[engine] = at
            heappush(self._heap, (at, next(self._serial), engine))

    def forget(self, engine: Engine) -> None:
        self._live.pop(engine, None)

    def due(self, now: int) -> list[Engine]:
        """Remove and return the engines whose deadline has passed, earliest first."""
        found: list[Engine] = []
        while self._heap and self._heap[0][0] <= now:
            at, _, engine = heappop(self._heap)
            if self._live.get(engine) == at:
                del self._live[engine]
                found.append(engine)
        return found

    def earliest(self) -> int | None:
        heap = self._heap
        while heap and self._live.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None
