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

        outboxes = OutboxTurns(together)

        def again() -> None:
            seen.append("c")
            outboxes.add(lambda: seen.append("d"))

        for name in "ab":
            outboxes.add(lambda name=name: seen.append(name))  # type: ignore[misc]
        outboxes.add(again)
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
        outboxes.add(lambda: seen.append(str(1 // 0)))
        outboxes.add(lambda: seen.append("b"))
        await turns()
        assert seen == ["b"]
        assert [type(told["exception"]) for told in failures] == [ZeroDivisionError]

    asyncio.run(run())
