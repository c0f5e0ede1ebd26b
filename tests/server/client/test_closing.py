"""Closing a client with a hundred thousand subscriptions does not block the loop."""

from __future__ import annotations

import asyncio

from broker.server.client.close_reason import Reason
from broker.server.client.connection import LEAVING_AT_ONCE
from tests.support.server import RawClient, run, running


def test_subscriptions_are_removed_in_parts_and_get_nothing_meanwhile() -> None:
    async def test() -> None:
        async with running() as server:
            crowd, stayer = [await RawClient.open(server) for _ in range(2)]
            await crowd.flush()
            leaving = next(iter(server.connections.values()))
            before = len(leaving.account.subs)
            count = 100 * LEAVING_AT_ONCE
            crowd.send(b"".join(b"SUB a.%d q %d\r\n" % (i, i) for i in range(count)))
            await crowd.flush()
            stayer.send(b"SUB a.* q 1\r\n")
            await stayer.flush()
            assert len(leaving.subs) == count
            leaving.abort(Reason.CLIENT_CLOSED)
            assert len(leaving.subs) == count - LEAVING_AT_ONCE
            last = next(reversed(leaving.subs.values())).subject
            for _ in range(50):  # the other member takes it, never the one that is closing
                assert server.router.publish(leaving.account, last, b"", b"", b"x") == 1
            turns = 1
            while leaving.subs:
                turns += 1
                await asyncio.sleep(0)
            assert turns >= 5
            assert len(leaving.account.subs) == before + 1
            stayer.close()
            crowd.close()

    run(test())
