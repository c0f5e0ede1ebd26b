"""Queries of Spark that run beside faults: in a thread, or as streaming queries.

Owns: their ends, and what is told when one fails."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

WITHIN_S = 600.0


class ProofFailed(AssertionError):
    """What was promised did not happen."""


class Background(threading.Thread):
    """Work beside the faults; `finish` raises what it raised."""

    def __init__(self, session: Any, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._session = session
        self._work = work
        self._problem: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            # Spark looks for Python sinks in the active session of a thread; a new one has none.
            self._session._jvm.SparkSession.setActiveSession(self._session._jsparkSession)
            self._work()
        except BaseException as problem:  # noqa: BLE001 - raised by finish()
            self._problem = problem

    def goes_on(self) -> bool:
        if self._problem is not None:
            raise self._problem
        return self.is_alive()

    def finish(self) -> None:
        self.join(WITHIN_S)
        if self._problem is not None:
            raise self._problem
        if self.is_alive():
            raise ProofFailed("the query does not end")


class Query:
    """A streaming query. One that fails goes on from its checkpoint, and that is told."""

    def __init__(self, begin: Callable[[], Any], fails_for: str = "") -> None:
        self._begin = begin
        self._fails_for = fails_for
        self._query = begin()
        self._restarts = 0

    def go_on(self) -> bool:
        failure = self._query.exception()
        if failure is None:
            return True
        if self._fails_for and self._fails_for in str(failure):
            return False
        self._restarts += 1
        if self._restarts > 5:
            raise failure
        lines = [line for line in str(failure).splitlines() if line.strip()]
        print(f"  the query failed, and goes on from its checkpoint: {lines[-1][:200]}")
        self._query = self._begin()
        return True

    def until(self, holds: Callable[[Any], bool]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not any(holds(json.loads(one.json)) for one in self._query.recentProgress):
            self.go_on()
            if time.monotonic() > deadline:
                raise ProofFailed(f"the query does not go on: {self._query.lastProgress}")
            time.sleep(0.1)

    def one_more_batch(self) -> None:
        before = max((one.batchId for one in self._query.recentProgress), default=-1)
        self.until(lambda one: one["batchId"] > before and one["numInputRows"] > 0)

    def failure(self) -> str:
        """The sentence with which it had to fail."""
        deadline = time.monotonic() + WITHIN_S
        while self.go_on():
            if time.monotonic() > deadline:
                raise ProofFailed("the query should have failed")
            time.sleep(0.1)
        lines = str(self._query.exception()).splitlines()
        return next(line for line in lines if self._fails_for in line).strip()[:300]

    def stop(self) -> None:
        self._query.stop()
