"""Transports that are stopped at any moment leave nothing open; dialing backs off."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import warnings
from itertools import pairwise
from typing import Any

import pytest

from raft.transport.transport import Transport, TransportLimits
from raft.types import node_id
from tests.support.listener import Listener
from tests.support.transport_rig import Cluster, cluster_test, loop_kind, run, until

__all__ = ["loop_kind"]  # a fixture: every test here runs on both event loops


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def node(name: str, port: int, routes: list[int], **options: Any) -> Transport:
    return Transport(
        node=node_id(name),
        name=name,
        cluster="c",
        listen_host="127.0.0.1",
        listen_port=port,
        routes=[("127.0.0.1", route) for route in routes],
        **options,
    )


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 30])
def test_nodes_stopped_right_after_their_start_leave_no_socket(
    turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopped `turns` of the loop after the start: during connects, accepts and handshakes."""

    async def body() -> None:
        ports = free_ports(3)
        transports = [node(n, p, ports) for n, p in zip("abc", ports, strict=True)]
        for transport in transports:
            await transport.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        for transport in transports:
            await transport.stop()

    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        run(body())
        gc.collect()
    assert [str(w.message) for w in caught] == []
    assert [r.getMessage() for r in caplog.records if r.name == "asyncio"] == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", ""])
def test_a_stopped_transport_frees_its_port(host: str) -> None:
    async def body(c: Cluster) -> None:
        a = node("a", 0, [])
        a._listen = (host, 0)
        await a.start()
        port = a.port
        again = node("a", port, [])
        with pytest.raises(OSError, match="in use"):
            await again.start()
        b = await c.start("b", port)
        await until(lambda: b.connected(a.node))
        await a.stop()
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await asyncio.open_connection("127.0.0.1", port)
        await again.start()
        c.transports.append(again)
        await until(c.is_full_mesh)

    cluster_test(body)


def test_dialing_backs_off_to_the_last_delay() -> None:
    """Attempts to reach a port that closes connections at once become less frequent."""

    async def body() -> None:
        attempts: list[float] = []

        async def hang_up(*_: object) -> None:
            attempts.append(time.monotonic())

        listener = Listener(hang_up)
        limits = TransportLimits(retry_first_seconds=0.02, retry_last_seconds=0.2, ping_seconds=60)
        a = node("a", 0, [listener.port], limits=limits)
        await a.start()
        await until(lambda: len(attempts) >= 10)
        gaps = [later - earlier for earlier, later in pairwise(attempts)]
        assert all(gap >= 0.2 * 0.9 for gap in gaps[7:])  # 0.02 * 1.5 ** 6 > 0.2
        assert all(gap >= 0.02 * 0.9 for gap in gaps)
        await a.stop()
        await listener.close()

    run(body())
