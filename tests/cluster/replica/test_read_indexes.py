"""Read indexes: many readers share a question, and nobody gets an answer older than its read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from broker.cluster.peers.rpc import CallFailed
from broker.cluster.replica.read_indexes import ReadIndexes
from raft import Index
from tests.support.server import run

GROUP = 7


class Leader:
    """Answers when told to."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Index]] = []
        self.tasks: list[asyncio.Future[None]] = []
        self.indexes = ReadIndexes(self._answer, self._spawn)

    async def _answer(self, group: int) -> Index:
        assert group == GROUP
        future: asyncio.Future[Index] = asyncio.get_running_loop().create_future()
        self.asked.append(future)
        return await future

    def _spawn(self, work: Awaitable[None], _name: str) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def reads(self, count: int) -> list[asyncio.Task[Index | None]]:
        tasks = [asyncio.create_task(self.indexes.get(GROUP)) for _ in range(count)]
        for _ in range(3):
            await asyncio.sleep(0)
        return tasks


def test_reads_during_a_question_share_the_next_one() -> None:
    async def test() -> None:
        leader = Leader()
        first = await leader.reads(1)
        later = await leader.reads(100)
        assert len(leader.asked) == 1
        leader.asked[0].set_result(Index(5))
        assert await first[0] == 5
        assert not any(one.done() for one in later)  # that answer may be older than they are
        await asyncio.sleep(0)
        assert len(leader.asked) == 2
        leader.asked[1].set_result(Index(9))
        assert await asyncio.gather(*later) == [9] * 100
        await asyncio.gather(*leader.tasks)

    run(test())


def test_a_leader_that_does_not_answer_holds_nobody() -> None:
    async def test() -> None:
        leader = Leader()
        failing = await leader.reads(2)
        leader.asked[0].set_exception(CallFailed("gone"))
        assert await asyncio.gather(*failing) == [None, None]
        again = await leader.reads(1)
        leader.asked[1].set_result(Index(1))
        assert await again[0] == 1
        await asyncio.gather(*leader.tasks)

    run(test())


def test_a_reader_that_leaves_does_not_end_the_question_of_the_others() -> None:
    async def test() -> None:
        leader = Leader()
        leaving, staying = await leader.reads(2)
        leaving.cancel()
        await asyncio.sleep(0)
        leader.asked[0].set_result(Index(3))
        assert await staying == 3
        await asyncio.gather(*leader.tasks)

    run(test())
