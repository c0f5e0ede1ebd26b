"""Warm up memory and disk before a measurement.

A virtual machine gets memory and disk blocks from its host when they are first touched, at a tenth
of the usual speed. Without a warm-up the first server measured after a pause would pay for that,
and the second would not."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STEP = 8 << 20


def warm(directory: Path, megabytes: int) -> float:
    """Write this much, flushed in steps, and remove it. Return the MB/s of the last part."""
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
