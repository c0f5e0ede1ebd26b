"""The clock that measures how much time has passed, also while the machine was suspended.

Owns: which clock of the operating system that is.
May not touch: wall clocks.
Spec: clock_gettime(2). CLOCK_MONOTONIC stops during a suspend, so a lease counted with it would
still hold afterwards. Where the system has no CLOCK_BOOTTIME, the monotonic clock must do."""

from __future__ import annotations

import sys
import time

if sys.platform == "linux":

    def boot_ns() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

else:

    def boot_ns() -> int:
        return time.monotonic_ns()


def boot_seconds() -> float:
    return boot_ns() / 1e9
