"""What the requests of connections, accounts and the node may hold, and who waits."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from broker.cluster.limits.request_budget import RequestBudget
from tests.support.server import run


class Connection:
    cid, echo = 1, True

    def __init__(self) -> None:
        self.paused = 0

    def pause_reading(self) -> None:
        self.paused += 1

    def resume_reading(self) -> None:
        self.paused -= 1


def test_a_connection_with_much_under_way_is_not_read() -> None:
    budget, busy, quiet = RequestBudget(connection_bytes=100), Connection(), Connection()
    for _ in range(3):
        budget.received(busy, 40)
    budget.received(quiet, 40)
    assert (busy.paused, quiet.paused) == (1, 0)
    budget.answered(busy, 40)
    assert busy.paused == 1, "not before half of it is answered"
    budget.answered(busy, 40)
    assert busy.paused == 0
    budget.answered(busy, 40)
    budget.answered(quiet, 40)
    assert not budget._of_connection


def test_requests_beyond_the_budget_wait_and_accounts_take_turns() -> None:
    async def test() -> None:
        budget, order = RequestBudget(node_bytes=60, account_bytes=55), []
        most = 0

        async def request(account: str, size: int) -> None:
            nonlocal most
            async with budget.holding(account, size):
                most = max(most, budget.held)
                order.append(account)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            for account in ["a"] * 10 + ["b", "c"]:
                tasks.create_task(request(account, 50))
        assert most <= 60
        assert max(order.index("b"), order.index("c")) <= 3, "not behind the ten of the other"
        async with budget.holding("a", 1000):  # larger than everything: alone
            assert budget.held == 1000
        assert budget.held == 0
        assert not budget._waiting

    run(test())


def test_a_request_that_is_given_up_leaves_the_queue() -> None:
    async def test() -> None:
        budget = RequestBudget(node_bytes=100, account_bytes=100)

        async def hold(size: int) -> None:
            async with budget.holding("a", size):
                await asyncio.sleep(0)

        async with AsyncExitStack() as held:
            await held.enter_async_context(budget.holding("a", 90))
            large, small = asyncio.ensure_future(hold(50)), asyncio.ensure_future(hold(10))
            await asyncio.sleep(0)
            large.cancel()  # the small one fits as soon as the large one does not wait before it
            with pytest.raises(asyncio.CancelledError):
                await large
            await small
        assert budget.held == 0
        # Cancelled in the same turn in which it was let in.
        async with budget.holding("a", 90):
            late = asyncio.ensure_future(hold(50))
            await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        assert budget.held == 0

    run(test())
