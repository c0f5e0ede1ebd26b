"""Waiting for a condition that no event announces.

Owns: nothing.
May not touch: what it waits for beyond calling the check."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(check: Callable[[], bool], *, timeout_s: float, every_s: float = 0.02) -> bool:
    """Poll until the check holds. False when it did not hold in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not check():
        if loop.time() > deadline:
            return False
        await asyncio.sleep(every_s)
    return True
