"""When the garbage collector looks at old objects: seldom, because the process stands still.

Owns: the collector's thresholds, which objects it leaves alone, and when it looks at all of them.
May not touch: anything else.

Python frees nearly everything by itself; the collector is for objects that refer to each other in a
circle. To find those it looks at every object of a generation at once. With ten thousand streams
that are millions of objects and about a second, long enough for the other nodes to elect new
leaders. So only young objects are collected regularly, a few at a time. What survives is set aside
(gc.freeze) and collected, all at once, only when it may be worth it: when there are many more
objects than new streams and consumers account for, or when much of what the node holds was
deleted."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

logger = logging.getLogger("jetraft.server")

YOUNG_OBJECTS: Final = 10_000  # a few milliseconds. More often, it would interrupt all the time
YOUNG_COLLECTIONS: Final = 4  # then those that survived are collected once more, and set aside
NEVER: Final = 1_000_000_000
CHECK_EVERY_S: Final = 60.0
OBJECTS_PER_HELD: Final = 45  # of a consumer at its leader; a stream has about three times that
GROWN_TIMES: Final = 1.5
GROWN_OBJECTS: Final = 300_000  # about 50 MB
DELETED_SHARE: Final = 0.2
DELETED_MIN: Final = 200


@dataclass(slots=True)
class OldObjects:
    """Decides when all objects are collected."""

    objects: int = 0  # set aside, after the last time
    held: int = 0  # consumers at that time; a stream counts as three
    held_most: int = 0  # since then

    def is_worth_it(self, *, objects: int, held: int) -> bool:
        self.held_most = max(self.held_most, held)
        deleted = self.held_most - held
        expected = self.objects + OBJECTS_PER_HELD * max(held - self.held, 0)
        return (
            objects > GROWN_TIMES * expected + GROWN_OBJECTS
            or deleted > DELETED_MIN + DELETED_SHARE * self.held_most
        )

    def collected(self, *, objects: int, held: int) -> None:
        self.objects, self.held, self.held_most = objects, held, held


def collect_young_objects() -> None:
    """At the start of the process: what there is by now is never freed."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, NEVER)
    gc.callbacks.append(_set_survivors_aside)
    gc.enable()


def _set_survivors_aside(phase: str, facts: dict[str, int]) -> None:
    if phase == "stop" and facts["generation"] == 1:
        gc.freeze()


class OldGarbage:
    """One per process. `held` counts what this node holds in large numbers."""

    def __init__(self, held: Callable[[], int]) -> None:
        self._held = held
        self._old = OldObjects()

    async def run(self) -> None:
        gc.collect(1)  # of the start
        self._old.collected(objects=gc.get_freeze_count(), held=self._held())
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            self.check()

    def check(self) -> None:
        if self._old.is_worth_it(objects=gc.get_freeze_count(), held=self._held()):
            began = time.perf_counter()
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._old.collected(objects=gc.get_freeze_count(), held=self._held())
            logger.debug("collected all garbage in %.3f s", time.perf_counter() - began)
