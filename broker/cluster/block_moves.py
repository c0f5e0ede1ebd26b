"""Moves live blocks out of block files that are mostly garbage, so that the files can be removed.

Owns: the task that empties files.
May not touch: what the state refers to (broker.store.state_db), the files (broker.store.values).
Spec: docs/decisions/0038-block-files.md."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from broker.store.state_db import StateDb
from broker.store.values.ledger import ValuePlace
from broker.store.values.value_files import ValueFiles, WrittenValues
from raft.store.records import StoreFailed

logger = logging.getLogger("jetraft.cluster")

CHECK_EVERY_S: Final = 1.0  # at most one file is emptied per interval
MOVED_BYTES: Final = 4 << 20  # moved in one job
AFTER_ERROR_S: Final = 10.0

KeepOpen = Callable[[], AbstractContextManager[None]]


class BlockMoves:
    """`run` is its task."""

    def __init__(self, state_db: StateDb, keep_open: KeepOpen, full: Callable[[], bool]) -> None:
        self._state_db = state_db
        self._keep_open = keep_open
        self._full = full

    async def run(self) -> None:
        values = self._state_db.values
        if values is None:
            return
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            file = values.wasteful(crowded=self._full())
            if file is None:
                continue
            try:
                await self._empty(values, file)
            except (OSError, StoreFailed) as error:
                logger.warning("blocks cannot be moved now, will retry: %s", error)
                await asyncio.sleep(AFTER_ERROR_S)

    async def empty_all(self) -> None:
        """Move live blocks out of every file that also contains garbage; the files are removed
        after the next flush of the state. Raises OSError, StoreFailed."""
        values = self._state_db.values
        if values is not None:
            for file in await asyncio.to_thread(values.with_garbage):
                await self._empty(values, file)

    async def _empty(self, values: ValueFiles, file: int) -> None:
        alive = values.living_in(file)
        while alive:
            count = size = 0
            while count < len(alive) and size < MOVED_BYTES:
                size += alive[count][1].size
                count += 1
            part, alive = alive[:count], alive[count:]
            copied, written = await asyncio.to_thread(self._copy, values, part)
            self._state_db.moved(copied, written)

    def _copy(
        self, values: ValueFiles, part: Sequence[tuple[bytes, ValuePlace]]
    ) -> tuple[list[tuple[bytes, ValuePlace]], WrittenValues]:
        with self._keep_open():
            return values.copy(part)
