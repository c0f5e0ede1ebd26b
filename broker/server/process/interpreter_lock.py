"""How long a thread waits for the interpreter while the event loop uses it.

Owns: the switch interval of the process.
May not touch: threads.

The thread that flushes the log needs the interpreter a few times per flush, for microseconds. A
thread that waits for it asks the loop to give it up only after the switch interval; and each time
that the loop gives it up by itself for a moment (once per turn) and takes it back, the thread has
to wait for another interval. With turns that are shorter than the interval it could wait
for many of them: beside a loop kept busy by one tenant, a publish of another one took
48 ms (p99 151) with Python's 5 ms, and 23 ms (p99 63) with 0.5 ms."""

from __future__ import annotations

import sys
from typing import Final

SWITCH_INTERVAL_S: Final = 0.0005  # less than a time slice of the fair queue


def share_interpreter() -> None:
    """At the start of the process."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
