"""How long a thread waits for the GIL while the event loop holds it.

Owns: the switch interval of the process.
May not touch: threads.

The thread that flushes the log needs the GIL a few times per flush, for microseconds. A waiting
thread asks the loop to release the GIL only after the switch interval; and each time the loop
releases it for a moment by itself (once per turn) and takes it back, the wait starts over. With
turns shorter than the interval, the thread could wait for many of them. While one tenant kept the
loop busy, a publish of another one took 48 ms (p99 151) with Python's 5 ms, and 23 ms (p99 63) with
0.5 ms."""

from __future__ import annotations

import sys
from typing import Final

SWITCH_INTERVAL_S: Final = 0.0005  # less than a time slice of the fair queue


def share_interpreter() -> None:
    """At the start of the process."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
