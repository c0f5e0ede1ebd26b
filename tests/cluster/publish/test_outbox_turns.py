"""Outboxes send together, once per turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from broker.cluster.publish.outbox_turns import OutboxTurns
from tests.support.cluster_fakes import turns


def test_what_is_added_in_one_turn_is_sent_in_one_callback() -> None:
    async def run() -> None:
        seen: list[str] = []

        def together(work: Callable[[], None]) -> None:
            seen.append("begin")
            work()
            seen.append("end")

        outboxes = OutboxTurns(together, lambda _group: True)

        def again() -> None:
            seen.append("c")
            outboxes.add(3, lambda: seen.append("d"))

        for name in "ab":
            outboxes.add(1, lambda name=name: seen.append(name))  # type: ignore[misc]
        outboxes.add(3, again)
        assert not seen
        await turns()
        assert seen == ["begin", "a", "b", "c", "end", "begin", "d", "end"]

    asyncio.run(run())


def test_an_outbox_that_fails_does_not_stop_the_others() -> None:
    async def run() -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: failures.append(told))
        seen: list[str] = []
        outboxes = OutboxTurns()
        outboxes.add(1, lambda: seen.append(str(1 // 0)))
        outboxes.add(2, lambda: seen.append("b"))
        await turns()
        assert seen == ["b"]
        assert [type(told["exception"]) for told in failures] == [ZeroDivisionError]

    asyncio.run(run())


class Flush:
    """`together` of a host with a flush in flight."""

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] = []

    def end(self) -> None:
        held, self.held = self.held, []
        for work in held:
            work()


def test_streams_that_wait_for_the_disk_collect_until_the_flush_ends() -> None:
    async def run() -> None:
        seen: list[str] = []
        flush = Flush()
        outboxes = OutboxTurns(flush.held.append, lambda group: group == 1)
        outboxes.add(1, lambda: seen.append("here"))
        outboxes.add(2, lambda: seen.append("elsewhere"))
        await turns()
        assert seen == ["elsewhere"]
        outboxes.add(1, lambda: seen.append("later"))
        await turns()
        assert len(flush.held) == 1
        flush.end()
        assert seen == ["elsewhere", "here", "later"]

    asyncio.run(run())


def test_much_is_sent_beside_the_flush_and_once() -> None:
    async def run() -> None:
        seen: list[str] = []
        flush = Flush()
        outboxes = OutboxTurns(flush.held.append, lambda _group: True)
        outboxes.add(1, lambda: seen.append("a"))
        outboxes.hurry()
        await turns()
        outboxes.hurry()
        await turns()
        assert seen == ["a"]
        outboxes.add(1, lambda: seen.append("b"))
        await turns()
        flush.end()
        assert seen == ["a", "b"]

    asyncio.run(run())
