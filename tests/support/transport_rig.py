"""Transports of several nodes in one process over real sockets, and a proxy that alters bytes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from raft.transport.transport import Peer, Transport, TransportLimits
from raft.types import node_id
from tests.support.listener import Listener

FAST = TransportLimits(ping_seconds=0.05, connect_seconds=1.0, retry_last_seconds=0.1)


@pytest.fixture(autouse=True, params=["asyncio", "uvloop"])
def loop_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs on both event loops the application may choose."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    monkeypatch.setattr(sys.modules[__name__], "new_loop", factory)


new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(bounded())


async def until(condition: Callable[[], bool], *, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.002)


class Cluster:
    """Starts transports and records what they report."""

    def __init__(self) -> None:
        self.transports: list[Transport] = []
        self.events: dict[str, list[tuple[str, bool]]] = {}

    async def start(
        self, name: str, *routes: int, cluster: str = "c", port: int = 0, **options: Any
    ) -> Transport:
        self.events[name] = events = []

        def on_peer(peer: Peer, connected: bool) -> None:
            events.append((peer.name, connected))

        options.setdefault("limits", FAST)
        options.setdefault("hello", lambda: {"client": name})
        options.setdefault("node", node_id(name))
        transport = Transport(
            name=name,
            cluster=cluster,
            listen_host="127.0.0.1",
            listen_port=port,
            routes=[("127.0.0.1", route) for route in routes],
            on_peer=on_peer,
            **options,
        )
        await transport.start()
        self.transports.append(transport)
        return transport

    def is_full_mesh(self) -> bool:
        nodes = {t.node for t in self.transports}
        return all(t.connected(n) for t in self.transports for n in nodes - {t.node})


@asynccontextmanager
async def nodes() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster
    finally:
        for transport in cluster.transports:
            await transport.stop()


def cluster_test(body: Callable[[Cluster], Awaitable[None]]) -> None:
    async def go() -> None:
        async with nodes() as cluster:
            await body(cluster)

    run(go())


class Proxy:
    """A TCP proxy before a transport's port. Bytes to it are counted and may be altered;
    connections may be cut. The transport must advertise `port`, or it is dialed directly."""

    def __init__(self) -> None:
        self.port = 0
        self.target = 0
        self.bytes_to_target = 0
        self.alter: Callable[[bytes], bytes] | None = None
        self._listener: Listener | None = None

    async def __aenter__(self) -> Proxy:
        self._listener = Listener(self._accepted)
        self.port = self._listener.port
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        await self._listener.close()

    def cut(self) -> None:
        """Close every open connection."""
        assert self._listener is not None
        self._listener.cut()

    def flip(self, offset: int, *, of_at_least: int) -> None:
        """Change a bit of one byte in the next chunk of at least that size."""

        def alter(data: bytes) -> bytes:
            if len(data) < of_at_least:
                return data
            self.alter = None
            return data[:offset] + bytes((data[offset] ^ 4,)) + data[offset + 1 :]

        self.alter = alter

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, far_writer, to_target=True))
                tasks.create_task(self._pump(far_reader, writer, to_target=False))
        except* OSError:
            pass  # cut, or the far side went away: both ends are closed below
        finally:
            writer.transport.abort()
            far_writer.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, to_target: bool
    ) -> None:
        while data := await source.read(1 << 18):
            if to_target:
                self.bytes_to_target += len(data)
                if self.alter is not None:
                    data = self.alter(data)
            sink.write(data)
            await sink.drain()
        raise ConnectionResetError
