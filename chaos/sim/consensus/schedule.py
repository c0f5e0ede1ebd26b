"""Virtual time and randomness: the event queue of one run, and its random number generators.

Owns: the queue of events, the virtual clock, one random number generator per concern of a seed.
May not touch: the real clock.
Spec: the same seed gives the same run on every machine."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

MS = 1000  # virtual time is counted in microseconds
SECOND = 1000 * MS


def rng_for(seed: int, concern: str) -> Random:
    """Each concern has its own generator, so that a change in one does not affect the others."""
    return Random(f"jetraft/{seed}/{concern}")


class EventQueue:
    """Events in order of virtual time; events of the same time in the order they were added."""

    __slots__ = ("_count", "_heap", "now_us", "steps")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0
        self.now_us = 0
        self.steps = 0

    def after(self, delay_us: int, action: Callable[..., None], *arguments: object) -> None:
        self._count += 1
        heappush(self._heap, (self.now_us + delay_us, self._count, action, arguments))

    def step(self) -> bool:
        """Run the next event. Returns False when the queue is empty."""
        if not self._heap:
            return False
        self.now_us, _, action, arguments = heappop(self._heap)
        self.steps += 1
        action(*arguments)
        return True
