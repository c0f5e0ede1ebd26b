"""Work that strangers cause: addresses take turns, and who has gone gets none."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.monitor.system import account_fetching
from broker.monitor.system.account_fetching import AccountFetching
from broker.monitor.system.address_turns import AddressTurns
from tests.support.cluster_fakes import run, turns


def test_a_flood_of_one_address_delays_another_one_by_one_place() -> None:
    async def test() -> None:
        places, order, go = AddressTurns(1), list[str](), asyncio.Event()

        async def work(address: str, name: str) -> None:
            async with places.taken(address):
                await go.wait()
                order.append(name)

        flood = [asyncio.ensure_future(work("a", f"a{at}")) for at in range(6)]
        await turns()
        other = asyncio.ensure_future(work("b", "b0"))
        await turns()
        flood[2].cancel()
        await turns()
        go.set()
        await asyncio.gather(*flood, other, return_exceptions=True)
        assert order == ["a0", "a1", "b0", "a3", "a4", "a5"]
        async with places.taken("c"):  # nobody has kept the place
            pass

    run(test())


def test_a_turn_that_comes_with_a_cancellation_is_passed_on() -> None:
    async def test() -> None:
        places = AddressTurns(1)
        first = places.taken("a")
        await first.__aenter__()

        async def wait() -> None:
            async with places.taken("b"):
                pass

        waiting = asyncio.ensure_future(wait())
        await turns()
        await first.__aexit__(None, None, None)  # its turn has come
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(5), places.taken("c"):
            pass

    run(test())


def test_an_account_is_fetched_for_the_next_client_if_the_first_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        server = SimpleNamespace(options=SimpleNamespace(authorization=SimpleNamespace(tokens={})))
        responder = SimpleNamespace(observed=SimpleNamespace(server=server), listen=lambda *_: None)
        fetching = AccountFetching(cast(Any, responder), lambda *_: None)
        fetched: list[str] = []

        async def fetch(_self: Any, account: str) -> None:
            fetched.append(account)
            server.options.authorization.tokens[account] = None

        monkeypatch.setattr(AccountFetching, "_fetch", fetch)
        monkeypatch.setattr(AccountFetching, "_is_old", lambda *_: False)
        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            for _ in range(account_fetching.FETCHES_MAX):  # no place is free
                await fetching._turns.taken("x").__aenter__()
            for present in (False, True, True):
                tasks.create_task(fetching.fetch("A", "a", wanted=lambda p=present: p))  # type: ignore[misc]
            tasks.create_task(fetching.fetch("B", "a", wanted=lambda: False))
            await turns()
            fetching._turns._pass_on()
        assert fetched == ["A"]

    run(test())
