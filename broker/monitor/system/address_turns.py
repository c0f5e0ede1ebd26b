"""Limits the concurrency of work that unauthenticated clients cause; round-robin by address.

Owns: how much of it runs, and the order of what waits.
May not touch: the work.
A flood from one address delays work for another one by one place, not by the whole flood."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class AddressTurns:
    def __init__(self, places: int) -> None:
        self._free = places
        # By address, the one whose turn is next first.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def taken(self, address: str) -> AsyncIterator[None]:
        """Run the block with a slot. If cancelled, the slot goes to the next in line."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(address)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, address: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had come just then
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            address = next(iter(self._waiting))
            queue = self._waiting.pop(address)
            turn = queue.popleft()
            if queue:
                self._waiting[address] = queue  # behind all others
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
