"""Direct gets that wait for a leader hold their answers within the budget of the account."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.api import jetstream_api
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
        service._running = Counter()
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


def test_requests_of_one_account_leave_room_for_those_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jetstream_api, "REQUESTS_MAX", 100)
    monkeypatch.setattr(jetstream_api, "REQUESTS_MIN", 10)
    service = cast(Any, object.__new__(ApiService))
    service.budget = SimpleNamespace(received=lambda *_: None)
    service._running, service.dropped = Counter(), 0
    service.spawn = lambda work, _name: work.close()

    def ask(account: str) -> bool:
        before = service.dropped
        call = SimpleNamespace(
            payload=b"", publisher=None, account=SimpleNamespace(name=account),
            request=SimpleNamespace(consumer=""),
        )  # fmt: skip
        service._begin(call)
        return bool(service.dropped == before)

    assert sum(ask("A") for _ in range(200)) == 100
    assert sum(ask("B") for _ in range(200)) == 50
    assert not ask("A")
    assert all(ask(f"C{at}") for at in range(50) for _ in range(10))  # each has its least
