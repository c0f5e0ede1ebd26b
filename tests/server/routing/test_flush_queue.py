"""A message for many subscribers of one account is written over several turns of the loop."""

from __future__ import annotations

import asyncio

from broker.accounts.unsent_bytes import UnsentBytes
from broker.server.routing.flush_queue import FLUSHES_MAX, FlushQueue
from tests.support.cluster_fakes import run


class Connection:
    def __init__(self, unsent: UnsentBytes, order: list[Connection]) -> None:
        self.unsent = unsent
        self._order = order

    def flush_in_turn(self) -> None:
        self._order.append(self)


def test_an_account_with_many_connections_delays_no_other() -> None:
    async def test() -> None:
        order: list[Connection] = []
        queue, busy, quiet = FlushQueue(), UnsentBytes(), UnsentBytes()
        many = [Connection(busy, order) for _ in range(3 * FLUSHES_MAX)]
        one = Connection(quiet, order)
        for connection in (*many, one):
            queue.add(connection)
        await asyncio.sleep(0)
        assert order == [*many[:FLUSHES_MAX], one]
        queue.add(one)
        await asyncio.sleep(0)
        assert order[FLUSHES_MAX + 1 :] == [*many[FLUSHES_MAX : 2 * FLUSHES_MAX], one]
        await asyncio.sleep(0)
        assert len(order) == len(many) + 2
        assert set(order) == {*many, one}

    run(test())


def test_a_flush_that_raises_stops_no_other() -> None:
    async def test() -> None:
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, facts: errors.append(facts))
        order: list[Connection] = []
        queue, unsent = FlushQueue(), UnsentBytes()

        class Broken(Connection):
            def flush_in_turn(self) -> None:
                raise OSError("broken")

        sound = Connection(unsent, order)
        queue.add(Broken(unsent, order))
        queue.add(sound)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == [sound]
        assert len(errors) == 1

    run(test())
