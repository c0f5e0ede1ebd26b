"""Direct gets that wait for a leader hold their answers within the budget of the account."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from broker.cluster.api.direct_get import BATCH_BYTES_MAX
from broker.cluster.api.jetstream_api import ApiService
from broker.cluster.limits.request_budget import RequestBudget
from tests.support.cluster_fakes import run

BATCH = b'{"seq":1,"batch":1000}'


def test_few_batches_of_an_account_are_under_way() -> None:
    async def test() -> None:
        tasks: list[asyncio.Task[Any]] = []
        service = cast(Any, object.__new__(ApiService))
        service.budget = RequestBudget(account_bytes=3 * BATCH_BYTES_MAX)
        service._running = 0
        service.spawn = lambda work, _name: tasks.append(asyncio.ensure_future(work))
        done, most = asyncio.Event(), [0, 0]

        def get(account: str) -> Callable[[], Awaitable[None]]:
            async def work() -> None:
                most[account == "B"] += 1
                await done.wait()

            return work

        for account in ("A",) * 20 + ("B",):
            call = SimpleNamespace(
                payload=BATCH, publisher=None, account=SimpleNamespace(name=account)
            )
            service._spawn_get(call, get(account))
        for _ in range(5):
            await asyncio.sleep(0)
        assert most == [3, 1]
        done.set()
        await asyncio.gather(*tasks)
        assert most == [20, 1]
        assert service.budget.held == 0

    run(test())
