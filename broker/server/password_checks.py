"""Passwords that are stored as bcrypt hashes are checked on a thread of low priority.

Owns: that thread, and the checks that wait for it.
May not touch: credentials; a check is a function.
A hash takes a tenth of a second of a core. On the threads that everything else uses, a flood of
wrong passwords would take every core and the place of all other work there. Addresses take turns: a
flood from one of them delays a login from another by one check. A check that nobody waits for any
more, because its connection has ended, is left out."""

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
        self._waiting: dict[str, deque[_Check[T]]] = {}  # by address, the next one first
        self._busy = False
        self._thread: ThreadPoolExecutor | None = None

    async def check(
        self, address: str, work: Callable[[], T], *, wanted: Callable[[], bool]
    ) -> T | None:
        """What `work` returns; None if it is no longer wanted when its turn comes."""
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
