"""Returns freed memory to the operating system after a load peak (malloc_trim).

Owns: when the allocator is asked to return free pages.
May not touch: what is in use.
The C allocator keeps freed memory below the top of its heap: one small live object at the top can
keep hundreds of megabytes in the process. `malloc_trim` returns the free pages in between. It holds
the allocator's lock for some milliseconds, so it is called only when there is much to return and
the memory of the process has stopped growing."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

logger = logging.getLogger("jetraft.server")

CHECK_EVERY_S: Final = 5.0
GROWN_BYTES: Final = 32 << 20  # growth since the last trim that makes another one worthwhile
STILL_BYTES: Final = 4 << 20  # less growth than this between two checks counts as none
_MEMORY: Final = Path("/proc/self/statm")


@dataclass(slots=True)
class TrimRule:
    """Decides when a trim is worthwhile, from the resident set size at every check."""

    after_trim: int = 0
    _before: int = 0

    def is_worth_it(self, resident: int) -> bool:
        before, self._before = self._before, resident
        if not self.after_trim:
            self.after_trim = resident
        grows = resident > before + STILL_BYTES
        return not grows and resident > self.after_trim + GROWN_BYTES

    def trimmed(self, resident: int) -> None:
        self.after_trim = self._before = resident


class FreedMemory:
    """One per process. Does nothing where the allocator has no such call."""

    def __init__(
        self,
        trim: Callable[[], object] | None = None,
        resident: Callable[[], int] | None = None,
    ) -> None:
        self._trim = trim or _malloc_trim()
        self._resident = resident or _resident_bytes
        self._rule = TrimRule()

    async def run(self) -> None:
        while self._trim is not None:
            await self.check(self._trim)
            await asyncio.sleep(CHECK_EVERY_S)

    async def check(self, trim: Callable[[], object]) -> None:
        before = self._resident()
        if self._rule.is_worth_it(before):
            # On a thread: ctypes releases the GIL, but a call on the loop would still block it.
            await asyncio.to_thread(trim)
            after = self._resident()
            self._rule.trimmed(after)
            logger.debug("returned %d MB of memory", (before - after) >> 20)


def _malloc_trim() -> Callable[[], object] | None:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # not the GNU C library
        return None
    return lambda: trim(0)


def _resident_bytes() -> int:
    try:
        pages = int(_MEMORY.read_bytes().split()[1])
    except OSError:  # no /proc: the peak is better than nothing
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return pages * resource.getpagesize()
