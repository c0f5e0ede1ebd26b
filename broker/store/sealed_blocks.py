"""Writes large sealed blocks to block files, on a worker thread.

Owns: the job that writes and syncs blocks; one job at a time.
May not touch: when checkpoints are taken (broker.cluster.replica), what the state refers to
(state_db.py), the files (broker/store/values).
Spec: docs/decisions/0038-block-files.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from broker.store.values.value_files import ValueFiles, WrittenValues

Values = Sequence[tuple[bytes, bytes]]
KeepOpen = Callable[[], AbstractContextManager[None]]


class SealedBlocks:
    """Blocks that arrive during a job are written and synced together by the next one."""

    def __init__(self, values: ValueFiles, keep_open: KeepOpen) -> None:
        """`keep_open`: a context in which the store is not closed."""
        self._values = values
        self._keep_open = keep_open
        self._waiting: list[tuple[Values, asyncio.Future[WrittenValues]]] = []
        self._writing = False

    def write(self, values: Values) -> asyncio.Future[WrittenValues]:
        """The values are on disk when the future is done. Its owner then calls `settle`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[WrittenValues] = loop.create_future()
        self._waiting.append((values, future))
        if not self._writing:
            self._next(loop)
        return future

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        jobs, self._waiting = self._waiting, []
        self._writing = bool(jobs)
        if jobs:
            together = [value for values, _ in jobs for value in values]
            written = loop.run_in_executor(None, self._write, together)
            written.add_done_callback(lambda ended: self._written(loop, jobs, ended))

    def _write(self, values: Values) -> WrittenValues:
        with self._keep_open():
            return self._values.write(values)

    def _written(
        self,
        loop: asyncio.AbstractEventLoop,
        jobs: list[tuple[Values, asyncio.Future[WrittenValues]]],
        ended: asyncio.Future[WrittenValues],
    ) -> None:
        error = ended.exception()
        first = 0
        for values, future in jobs:
            if error is not None:
                future.set_exception(error)
                continue
            places = ended.result().places[first : first + len(values)]
            first += len(values)
            future.set_result(WrittenValues(places, ended.result().opening))
        self._next(loop)
