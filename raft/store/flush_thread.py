"""The thread that flushes the log (fsync) when it is asked to.

Owns: the thread, and the callback to the event loop after each flush.
May not touch: what is flushed (LogStore.flush does it), when a flush is due (raft/host/rounds.py
decides, raft/host/round_loop.py asks).
Spec: an executor would do the same with two futures per flush, which cost more locks and two more
turns of the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

from raft.store.log_store import LogStore


class FlushThread:
    """Runs until `stop`. One flush at a time: request the next one after the answer."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: LogStore,
        flushed: Callable[[BaseException | None], None],
    ) -> None:
        """`flushed` is called on the loop after each flush, with the exception it raised."""
        self._loop = loop
        self._store = store
        self._flushed = flushed
        self._requests: SimpleQueue[str] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="raft-storage", daemon=True)
        self._thread.start()

    def request(self) -> None:
        self._requests.put("flush")

    def stop(self) -> None:
        """Blocking, while a flush is in flight."""
        self._requests.put("stop")
        self._thread.join()

    def _run(self) -> None:
        while self._requests.get() == "flush":
            error: BaseException | None = None
            try:
                self._store.flush()
            except BaseException as raised:  # noqa: BLE001 - passed on to the loop
                error = raised
            self._loop.call_soon_threadsafe(self._flushed, error)
