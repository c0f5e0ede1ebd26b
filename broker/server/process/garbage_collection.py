"""When the garbage collector runs: rarely over old objects, because it stops the process.

Owns: the collector's thresholds, which objects are frozen, and when a full collection runs.
May not touch: anything else.

Reference counting frees nearly everything; the collector is for reference cycles. To find those it
traverses all objects of a generation in one go. With ten thousand streams that means millions of
objects and about a second, long enough for the other nodes to elect new leaders. So only young
objects are collected regularly, a few at a time. Survivors are frozen (gc.freeze). A full
collection runs only when it may be worthwhile: when there are many more objects than new streams
and consumers account for, or when much of what the node held was deleted."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

logger = logging.getLogger("jetraft.server")

# Every object that survives is traversed twice, whatever these numbers are. 10,000 objects take 2
# to 5 ms, and the second pass traverses YOUNG_OBJECTS * (YOUNG_COLLECTIONS + 1) of them.
YOUNG_OBJECTS: Final = 5_000
YOUNG_COLLECTIONS: Final = 1  # then the survivors are collected once more, and frozen
NEVER: Final = 1_000_000_000
CHECK_EVERY_S: Final = 60.0
OBJECTS_PER_HELD: Final = 45  # objects of a consumer at its leader; a stream has three times that
GROWN_TIMES: Final = 1.5
GROWN_OBJECTS: Final = 300_000  # about 50 MB
DELETED_SHARE: Final = 0.2
DELETED_MIN: Final = 200


@dataclass(slots=True)
class OldObjects:
    """Decides when a full collection is worthwhile."""

    objects: int = 0  # frozen after the last full collection
    held: int = 0  # consumers at that time; a stream counts as three
    held_most: int = 0  # maximum since then

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
    """At the start of the process. Freezes what exists so far: it is never freed."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, NEVER)
    gc.callbacks.append(_set_survivors_aside)
    gc.enable()


def _set_survivors_aside(phase: str, facts: dict[str, int]) -> None:
    if phase == "stop" and facts["generation"] == 1:
        gc.freeze()


class OldGarbage:
    """One per process. `held` returns the number of consumers; a stream counts as three."""

    def __init__(self, held: Callable[[], int]) -> None:
        self._held = held
        self._old = OldObjects()

    async def run(self) -> None:
        gc.collect(1)  # garbage of the start-up
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
