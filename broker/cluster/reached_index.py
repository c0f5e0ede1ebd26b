"""Callers that wait until this node has applied the log of a group up to an index.

Owns: their futures.
May not touch: the log, what its entries mean."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True)
class ReachedIndex:
    """At most one caller per request in progress; requests are bounded where they arrive."""

    _waiting: dict[asyncio.Future[None], int] = field(default_factory=dict)

    async def wait(self, index: int, *, timeout_s: float) -> bool:
        """Whether `reached` was called with this index, or a higher one, in time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = index
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(future, None)
        return True

    def reached(self, index: int) -> None:
        """Everything up to this index is applied."""
        for future in [f for f, wanted in self._waiting.items() if wanted <= index]:
            if not future.done():
                future.set_result(None)
