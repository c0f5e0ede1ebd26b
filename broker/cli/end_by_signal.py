"""For commands that start servers: SIGTERM and Ctrl-C end them cleanly, with the servers stopped.

Owns: the handlers of SIGTERM and SIGINT while such a command runs.
May not touch: the servers; context managers stop them while the exception passes through."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
CANCEL_EVERY_S = 0.2


@contextmanager
def end_by_signal() -> Iterator[None]:
    """Inside, both signals raise SystemExit, so that `finally` and `with` blocks run."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [(number, signal.signal(number, end)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, for work with a client library that may swallow a cancellation: at a signal
    its tasks are cancelled until they have ended, not once."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    try:
        return loop.run_until_complete(task)
    finally:
        while not task.done():
            for one in asyncio.all_tasks(loop):
                one.cancel()
            loop.run_until_complete(asyncio.wait([task], timeout=CANCEL_EVERY_S))
        loop.close()
