"""A process without memory, or one that holds its old store, begins again."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from typing import Any

import pytest

from broker.main import on_unhandled
from broker.server.process.tasks import Tasks
from raft.store.records import StoreHeld


@pytest.fixture
def began_again(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *command: calls.append(command))
    monkeypatch.setattr(os, "_exit", calls.append)
    return calls


COMMAND = [(sys.executable, sys.orig_argv), 1]  # the first call never returns


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), COMMAND),
        (RuntimeError("can't start new thread"), COMMAND),
        (OSError(errno.ENOMEM, "no memory"), COMMAND),
        (ExceptionGroup("of tasks", [KeyError(), MemoryError()]), COMMAND),
        (StoreHeld("is still open"), COMMAND),
        (KeyError(), []),
        (OSError(errno.EIO, "a disk"), []),
    ],
)
def test_in_a_callback(
    error: Exception, expected: list[Any], began_again: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(on_unhandled)
        loop.call_soon(_raise, error)
        await asyncio.sleep(0)

    asyncio.run(fail())
    assert began_again == expected
    assert caplog.records, "either way it is logged"


@pytest.mark.parametrize(("error", "expected"), [(MemoryError(), COMMAND), (KeyError(), [])])
def test_in_a_task(error: Exception, expected: list[Any], began_again: list[Any]) -> None:
    async def work() -> None:
        raise error

    async def fail() -> None:
        asyncio.get_running_loop().set_exception_handler(on_unhandled)
        async with Tasks() as tasks:
            tasks.spawn(work(), name="failing")
            await asyncio.sleep(0)

    asyncio.run(fail())
    assert began_again == expected


def test_a_process_that_cannot_begin_again_ends(
    began_again: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "execv", lambda *_: _raise(MemoryError()))
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(MemoryError):
            on_unhandled(loop, {"message": "no memory", "exception": MemoryError()})
    finally:
        loop.close()
    assert began_again == [1]


def _raise(error: Exception) -> None:
    raise error
