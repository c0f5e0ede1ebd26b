"""Checks passwords against bcrypt hashes, on one thread of low priority.

Owns: that thread, and the queue of checks.
May not touch: credentials; a check is a function.
A hash takes a tenth of a second of CPU. On the shared thread pool, a flood of wrong passwords would
use every core and block all other work of the pool. The queue is round-robin by address: a flood
from one address delays a login from another by one check. A check whose connection has closed is
skipped."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

PRIORITY = 10  # nice


@dataclass(slots=True)
class _Check(Generic[T]):
    work: Callable[[], T]
    wanted: Callable[[], bool]
    verdict: asyncio.Future[T | None]


class PasswordChecks(Generic[T]):
    """One per server. The thread starts with the first check."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[_Check[T]]] = {}  # by address, the next address first
        self._busy = False
        self._thread: ThreadPoolExecutor | None = None

    async def check(
        self, address: str, work: Callable[[], T], *, wanted: Callable[[], bool]
    ) -> T | None:
        """Returns what `work` returns; None if `wanted()` is False when its turn comes."""
        verdict: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(_Check(work, wanted, verdict))
        self._next()
        return await verdict

    def _next(self) -> None:
        while self._waiting and not self._busy:
            address = next(iter(self._waiting))
            queue = self._waiting.pop(address)
            check = queue.popleft()
            if queue:
                self._waiting[address] = queue  # behind all others
            if check.verdict.done():
                continue
            if not check.wanted():
                check.verdict.set_result(None)
                continue
            self._busy = True
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "password", initializer=_step_back)
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._thread, check.work)
            running.add_done_callback(lambda done, check=check: self._done(check, done))  # type: ignore[misc]

    def _done(self, check: _Check[T], done: asyncio.Future[T]) -> None:
        self._busy = False
        if not check.verdict.done():
            if done.cancelled():
                check.verdict.cancel()
            elif (problem := done.exception()) is not None:
                check.verdict.set_exception(problem)
            else:
                check.verdict.set_result(done.result())
        self._next()


def _step_back() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), PRIORITY)
