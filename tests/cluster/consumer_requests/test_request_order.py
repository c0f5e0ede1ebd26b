"""Requests about one consumer keep their order; reads do not wait for each other."""

from __future__ import annotations

import asyncio

import pytest

from broker.cluster.consumer_requests import request_order
from broker.cluster.consumer_requests.request_order import RequestOrder

KEY = (1, "A", "S", "C")


class Work:
    """Requests that end when they are told to."""

    def __init__(self) -> None:
        self.order = RequestOrder()
        self.began: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def add(self, name: str, *, changes: bool, key: tuple[int, str, str, str] = KEY) -> None:
        place = self.order.enter(key, changes=changes)
        gate = self.gates[name] = asyncio.Event()

        async def request() -> None:
            async with place:
                self.began.append(name)
                await gate.wait()

        self.tasks[name] = asyncio.create_task(request())

    async def end(self, *names: str) -> None:
        for name in names:
            self.gates[name].set()
            await self.tasks[name]
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def test_changes_and_reads_take_turns() -> None:
    async def test() -> None:
        work = Work()
        work.add("create", changes=True)
        work.add("info 1", changes=False)
        work.add("info 2", changes=False)
        work.add("delete", changes=True)
        work.add("info 3", changes=False)
        work.add("other", changes=True, key=(2, "A", "S", "C"))
        await asyncio.sleep(0)
        assert work.began == ["create", "other"]
        await work.end("create")
        assert work.began[2:] == ["info 1", "info 2"]
        await work.end("info 2")
        assert "delete" not in work.began
        await work.end("info 1")
        assert work.began[4:] == ["delete"]
        await work.end("delete")
        assert work.began[5:] == ["info 3"]
        await work.end("info 3", "other")
        assert len(work.order) == 0

    asyncio.run(test())


def test_one_that_is_cancelled_while_it_waits_lets_the_next_go() -> None:
    async def test() -> None:
        work = Work()
        for name in ("first", "second", "third"):
            work.add(name, changes=True)
        await asyncio.sleep(0)
        work.tasks["second"].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert work.began[:1] == ["first"]
        await work.end("first", "third")
        assert work.began == ["first", "third"]
        assert len(work.order) == 0

    asyncio.run(test())


def test_a_line_behind_a_request_without_an_answer_does_not_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not one timeout after the other: each place is one of the whole node."""
    monkeypatch.setattr(request_order, "WAIT_S", 0.01)

    async def test() -> None:
        work = Work()
        names = [f"create {number}" for number in range(50)]
        for name in names:
            work.add(name, changes=True)
        waiting = [work.tasks[name] for name in names[1:]]
        async with asyncio.timeout(10):
            found = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(one, TimeoutError) for one in found)
        assert work.began == names[:1]
        await work.end(names[0])
        assert len(work.order) == 0

    asyncio.run(test())
