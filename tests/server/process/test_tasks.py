"""The root task group: a failing task ends alone, and leaving the block ends the others."""

from __future__ import annotations

import asyncio

import pytest

from broker.server.process.tasks import Tasks
from tests.support.server import run, until


def test_a_failing_task_is_logged_and_the_others_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise RuntimeError("as planned")

    async def test() -> None:
        survivor = asyncio.Event()

        async def work() -> None:
            await asyncio.sleep(0)
            survivor.set()

        async with Tasks() as tasks:
            tasks.spawn(fail(), name="failing")
            tasks.spawn(work(), name="working")
            await until(survivor.is_set)
        assert "Task failing failed" in caplog.text

    run(test())


def test_leaving_the_block_cancels_what_still_runs() -> None:
    async def test() -> None:
        ended = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async with Tasks() as tasks:
            tasks.spawn(work(), name="waiting")
            await asyncio.sleep(0)
            tasks.spawn(work(), name="cancelled before its first step")
        assert ended.is_set()

    run(test())


def test_an_exception_of_the_block_is_not_wrapped() -> None:
    async def test() -> None:
        async with Tasks() as tasks:
            tasks.spawn(asyncio.sleep(100), name="waiting")
            raise LookupError("of the block")

    with pytest.raises(LookupError):
        run(test())
