"""While configured peers cannot be reached, the log says which and why, and says it again."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from broker.cluster.peers import unreachable_routes
from broker.cluster.peers.unreachable_routes import report_unreachable
from raft.transport.transport import Transport
from raft.types import node_id


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unreachable_routes, "FIRST_AFTER_S", 0.001)
    monkeypatch.setattr(unreachable_routes, "AGAIN_AFTER_S", 0.001)


def test_the_reasons_are_repeated_until_all_routes_are_connected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = [["b:1 refused the connection"], ["b:1 is an unknown host"], [], []]

    async def test() -> None:
        def missing() -> list[str]:
            if not answers:
                raise EOFError
            return answers.pop(0)

        with pytest.raises(EOFError):
            await report_unreachable(missing, 2)

    with caplog.at_level(logging.INFO, "jetraft.cluster"):
        asyncio.run(test())
    assert caplog.messages == [
        "waiting for 1 of 2 routes: b:1 refused the connection",
        "waiting for 1 of 2 routes: b:1 is an unknown host",
        "all 2 routes are connected",
    ]


def test_a_transport_knows_why_a_route_is_not_connected() -> None:
    with socket.socket() as bound:  # bound and not listening: nobody answers there
        bound.bind(("127.0.0.1", 0))
        asyncio.run(_reasons(bound.getsockname()[1]))


async def _reasons(nobody: int) -> None:
    transport = Transport(
        node=node_id("a"),
        name="a",
        cluster="c",
        listen_host="127.0.0.1",
        listen_port=0,
        routes=[("127.0.0.1", nobody), ("no.such.host.invalid", 6222)],
    )
    await transport.start()
    try:
        wanted = {
            f"127.0.0.1:{nobody} refused the connection",
            "no.such.host.invalid:6222 is an unknown host",
        }
        async with asyncio.timeout(20):
            while set(transport.unreachable()) != wanted:
                await asyncio.sleep(0.01)
    finally:
        await transport.stop()
