"""The machine before a measurement: memory and disk that were in use a moment ago.

A virtual machine gets memory and disk blocks from its host when it touches them for the first
time, at a tenth of the speed of later times and on the account of whoever touches them. Whoever
runs after a pause would pay for that, and the one after him would not."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STEP = 8 << 20


def warm(directory: Path, megabytes: int) -> float:
    """Write so much, flushed in steps, and remove it. Returns the MB/s of the last part."""
    block = os.urandom(_STEP)
    steps = max(16, megabytes * 1_000_000 // _STEP)
    path = directory / "warm"
    with path.open("wb", buffering=0) as file:
        for step in range(steps):
            if step == steps - 16:
                began = time.monotonic()
            file.write(block)
            os.fdatasync(file.fileno())
        passed = time.monotonic() - began
    path.unlink()
    return 16 * _STEP / passed / 1e6
