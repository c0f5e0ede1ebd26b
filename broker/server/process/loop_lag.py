"""Measures the lag of the event loop: a stalled loop causes false elections.

Owns: one repeating timer and its lateness.
May not touch: anything else.
Spec: docs/ARCHITECTURE.md, "Invariants": nothing blocks the event loop."""

from __future__ import annotations

import asyncio

INTERVAL_SECONDS = 0.1


class LoopLag:
    """Lateness of a timer: the last one, the worst one, and the worst of the last window."""

    __slots__ = ("_due", "_handle", "_loop", "_recent", "last_s", "worst_s")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._recent = 0.0
        self.last_s = 0.0
        self.worst_s = 0.0

    def start(self) -> None:
        self._due = self._loop.time() + INTERVAL_SECONDS
        self._handle = self._loop.call_at(self._due, self._measure)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def take_recent(self) -> float:
        """The worst lateness since the last call."""
        recent, self._recent = self._recent, 0.0
        return recent

    def _measure(self) -> None:
        self.last_s = max(0.0, self._loop.time() - self._due)
        self.worst_s = max(self.worst_s, self.last_s)
        self._recent = max(self._recent, self.last_s)
        self.start()
