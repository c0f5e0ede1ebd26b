"""One thread that flushes the log when it is asked to.

Owns: the thread, and the way of its answer back to the loop.
May not touch: what is flushed, when it is asked (raft.rounds).
Spec: DESIGN section 4, step 5. An executor does the same by two futures per flush, which cost
more locks and two more turns of the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

from raft.store.log_store import LogStore

Answer = Callable[[BaseException | None], None]


class Flusher:
    """Until `stop`. One flush at a time: the next one is asked for after the answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: LogStore, answer: Answer) -> None:
        """`answer` is called on the loop after each flush, with what it raised."""
        self._loop = loop
        self._store = store
        self._answer = answer
        self._asked: SimpleQueue[object] = SimpleQueue()  # None: no more
        self._thread = threading.Thread(target=self._run, name="raft-storage", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        self._asked.put(self)

    def stop(self) -> None:
        """Blocking, while a flush is under way."""
        self._asked.put(None)
        self._thread.join()

    def _run(self) -> None:
        while self._asked.get() is not None:
            error: BaseException | None = None
            try:
                self._store.flush()
            except BaseException as raised:  # noqa: BLE001 - told to who asked
                error = raised
            self._loop.call_soon_threadsafe(self._answer, error)
