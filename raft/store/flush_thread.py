"""The threads that flush the log (fsync) when they are asked to.

Owns: both threads, and the callback to the event loop after each flush.
May not touch: what is flushed (LogStore does it), when a flush is due (raft/host/rounds.py decides,
raft/host/round_loop.py asks).
Spec: usually only the fdatasync runs on a thread, which never takes the GIL (_sync_thread.pyx): a
Python thread takes it three times per flush, and each time waits for the loop, or makes the loop
wait. A flush that cannot begin on the loop, because another one is in flight, runs on a Python
thread. With JETRAFT_PURE=1, every flush does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from os import environ
from queue import SimpleQueue
from typing import TYPE_CHECKING

from raft.store.log_flush import FlushJob
from raft.store.log_store import LogStore

if TYPE_CHECKING:
    from raft.store._sync_thread import SyncThread


def _sync_thread() -> SyncThread | None:
    if environ.get("JETRAFT_PURE") == "1":
        return None
    try:
        from raft.store._sync_thread import SyncThread
    except ImportError as error:
        raise ImportError(
            "a compiled module is missing: run `python setup.py build_ext --inplace`, or set "
            "JETRAFT_PURE=1 to do without it"
        ) from error
    return SyncThread()


class FlushThread:
    """Runs until `stop`. One flush at a time: request the next one after the callback."""

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
        self._thread: threading.Thread | None = None  # started when it is needed
        self._job: FlushJob | None = None  # in flight on the thread without the GIL
        self._syncing = _sync_thread()
        if self._syncing is not None:
            loop.add_reader(self._syncing.event, self._synced)

    def request(self) -> None:
        if self._syncing is None:
            self._request_thread()
            return
        try:
            self._job = self._store.begin_flush(self._syncing)
        except Exception as error:  # noqa: BLE001 - passed on to the loop
            self._loop.call_soon(self._flushed, error)
            return
        if self._job is None:
            self._request_thread()

    def _synced(self) -> None:
        job, self._job = self._job, None
        assert self._syncing is not None
        number = self._syncing.finish()
        if job is None:
            return
        error: BaseException | None = None
        try:
            self._store.end_flush(job, number)
        except Exception as raised:  # noqa: BLE001 - passed on
            error = raised
        self._flushed(error)

    def stop(self) -> None:
        """Blocks while a flush is in flight."""
        if self._syncing is not None:
            self._loop.remove_reader(self._syncing.event)
            self._syncing.stop()
        if self._thread is not None:
            self._requests.put("stop")
            self._thread.join()

    # the Python thread

    def _request_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="raft-storage", daemon=True)
            self._thread.start()
        self._requests.put("flush")

    def _run(self) -> None:
        while self._requests.get() == "flush":
            error: BaseException | None = None
            try:
                self._store.flush()
            except BaseException as raised:  # noqa: BLE001 - passed on to the loop
                error = raised
            self._loop.call_soon_threadsafe(self._flushed, error)
