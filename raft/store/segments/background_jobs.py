"""Background jobs of the log: preparing and freeing segments, flushing promises.

Owns: the thread on which they run, one after the other.
May not touch: what they do.
Spec: docs/decisions/0019-a-log-of-our-own.md, "Segments"."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Jobs(Protocol):
    """Runs jobs one after the other, later and on another thread."""

    def submit(self, job: Callable[[], None]) -> None: ...

    def stop(self) -> None:
        """Blocks until the running job ends; waiting jobs are dropped."""


class JobThread:
    """Jobs on a daemon thread, which starts with the first one."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def submit(self, job: Callable[[], None]) -> None:
        with self._wake:
            if self._stopped:
                return
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="raft-log", daemon=True)
                self._thread.start()
            self._wake.notify()

    def stop(self) -> None:
        with self._wake:
            self._stopped = True
            self._jobs.clear()
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._stopped:
                    self._wake.wait()
                if self._stopped:
                    return
                job = self._jobs.popleft()
            job()
