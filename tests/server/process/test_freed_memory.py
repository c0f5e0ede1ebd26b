"""Memory is returned after it has grown, not while it grows and not again and again."""

from __future__ import annotations

import asyncio

from broker.server.process.freed_memory import GROWN_BYTES, FreedMemory, TrimRule
from tests.support.cluster_fakes import run

MB = 1 << 20


def test_it_waits_until_the_storm_is_over() -> None:
    rule = TrimRule()
    seen = [60 * MB, 200 * MB, 300 * MB, 301 * MB]
    assert [rule.is_worth_it(resident) for resident in seen] == [False, False, False, True]
    rule.trimmed(90 * MB)
    assert not rule.is_worth_it(91 * MB)


def test_what_is_still_in_use_is_not_looked_for_again() -> None:
    rule = TrimRule()
    assert not rule.is_worth_it(60 * MB)
    assert not rule.is_worth_it(300 * MB)
    assert rule.is_worth_it(300 * MB)
    rule.trimmed(290 * MB)  # a cache, say
    assert [rule.is_worth_it(290 * MB) for _ in range(5)] == [False] * 5
    assert not rule.is_worth_it(290 * MB + GROWN_BYTES // 2)


def test_the_allocator_is_asked_once() -> None:
    async def test() -> None:
        resident = iter([60 * MB, 300 * MB, 300 * MB, 100 * MB, 100 * MB])
        trims: list[int] = []
        freed = FreedMemory(trim=lambda: trims.append(1), resident=lambda: next(resident))
        for _ in range(4):
            await freed.check(lambda: trims.append(1))
        assert trims == [1]

    run(test())


def test_the_task_of_a_process_can_be_cancelled() -> None:
    async def test() -> None:
        task = asyncio.create_task(FreedMemory().run())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.exception() is None

    run(test())
