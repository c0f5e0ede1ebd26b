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
CANCELS_MAX = 25  # of what the work has left behind
NUMBERS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def end_by_signal() -> Iterator[None]:
    """Inside, both signals raise SystemExit, so that `finally` and `with` blocks run."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        for each in NUMBERS:
            signal.signal(each, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
        raise SystemExit(128 + number)

    before = [(number, signal.signal(number, end)) for number in NUMBERS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, for work with a client library that may swallow a cancellation: at a signal
    its tasks are cancelled until they have ended, not once.

    The signals are those of the loop: an exception that a handler raises wherever the program is
    may be in a finalizer, which drops it."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    received: list[int] = []
    for number in NUMBERS:
        loop.add_signal_handler(number, _end, loop, task, received, number)
    try:
        return loop.run_until_complete(task)
    finally:
        while not task.done():
            _cancel(loop)
            loop.run_until_complete(asyncio.wait([task], timeout=CANCEL_EVERY_S))
        _end_rest(loop)
        for number in NUMBERS:
            loop.remove_signal_handler(number)
        loop.close()
        if received:
            raise SystemExit(128 + received[0])


def _end(
    loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], received: list[int], number: int
) -> None:
    """Again and again until the task is done; another signal changes nothing."""
    received.append(number)
    if len(received) > 1:
        return

    def again() -> None:
        if not task.done():
            _cancel(loop)
            loop.call_later(CANCEL_EVERY_S, again)

    again()


def _end_rest(loop: asyncio.AbstractEventLoop) -> None:
    """Tasks that the work has left behind, those of a client library for example."""
    for _ in range(CANCELS_MAX):
        rest = asyncio.all_tasks(loop)
        if not rest:
            break
        _cancel(loop)
        done, _ = loop.run_until_complete(asyncio.wait(rest, timeout=CANCEL_EVERY_S))
        for one in done:
            if not one.cancelled():
                one.exception()  # nobody else asks for it
    loop.run_until_complete(loop.shutdown_asyncgens())


def _cancel(loop: asyncio.AbstractEventLoop) -> None:
    for one in asyncio.all_tasks(loop):
        one.cancel()
