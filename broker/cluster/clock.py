"""The wall clock of one node.

Owns: the offset between the wall clock and the monotonic clock, read once.
May not touch: replicated time; a stream stamps its commands itself (replica/replica.py)."""

from __future__ import annotations

import time
from collections.abc import Callable


def steady_clock() -> Callable[[], int]:
    """Wall time in nanoseconds that never steps back: the wall clock is read once, here, and the
    monotonic clock advances it from then on."""
    epoch_ns = time.time_ns() - time.monotonic_ns()
    monotonic_ns = time.monotonic_ns
    return lambda: epoch_ns + monotonic_ns()
