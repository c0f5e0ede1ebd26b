"""Logs the configured routes that cannot be reached.

Owns: when and how often they are logged.
May not touch: links; dialing continues in any case (raft/transport/dialer.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

logger = logging.getLogger("jetraft.cluster")

FIRST_AFTER_S: Final = 3.0
AGAIN_AFTER_S: Final = 30.0


async def report_unreachable(unreachable: Callable[[], list[str]], routes: int) -> None:
    """Repeat the reasons while there are any. `unreachable` lists the routes without links."""
    silent_s = FIRST_AFTER_S
    reported = False
    while True:
        await asyncio.sleep(silent_s)
        missing = unreachable()
        silent_s = AGAIN_AFTER_S if missing else FIRST_AFTER_S
        if missing:
            logger.warning(
                "waiting for %d of %d routes: %s", len(missing), routes, "; ".join(missing)
            )
        elif reported:
            logger.info("all %d routes are connected", routes)
        reported = bool(missing)
