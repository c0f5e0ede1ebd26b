"""The background tasks of one process, in one task group.

Owns: the set of running tasks and their end.
May not touch: what the tasks do. A task that fails is logged and does not cancel the others, unlike
in a bare TaskGroup. A MemoryError is also passed to the event loop's exception handler, because it
concerns the whole process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol

from broker.server.process.log import logger


class Spawn(Protocol):
    """Start a task that runs until it ends or the process stops."""

    def __call__(self, work: Coroutine[Any, Any, None], /, *, name: str) -> None: ...


class Tasks:
    """`async with Tasks() as tasks`: leaving the block cancels what still runs and waits for it."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._running: dict[asyncio.Task[None], None] = {}  # in the order of their start

    async def __aenter__(self) -> Tasks:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The exception of the block passes through as it is, not as an ExceptionGroup."""
        self.cancel()
        await self._group.__aexit__(None, None, None)

    def spawn(self, work: Coroutine[Any, Any, None], /, *, name: str) -> None:
        task = self._group.create_task(_logged(work, name), name=name)
        self._running[task] = None

        def done(task: asyncio.Task[None]) -> None:
            self._running.pop(task, None)
            work.close()  # a task that was cancelled before its first step has not awaited it

        task.add_done_callback(done)

    def cancel(self) -> None:
        """End everything, except for the task that calls this."""
        caller = asyncio.current_task()
        for task in list(self._running):
            if task is not caller:
                task.cancel()


async def _logged(work: Coroutine[Any, Any, None], name: str) -> None:
    try:
        await work
    except Exception as error:  # noqa: BLE001 - the edge of a task; the failure is logged
        logger.error("Task %s failed", name, exc_info=error)
        if isinstance(error, MemoryError):
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"Task {name} is out of memory", "exception": error}
            )
