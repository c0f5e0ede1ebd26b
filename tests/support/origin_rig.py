"""A scripted server, and client connections that read from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from broker.cluster.origins.origin_connection import OriginConnection
from broker.cluster.origins.origin_login import OriginAddress
from tests.support.cluster_fakes import turns

INFO = b'INFO {"server_id":"X","version":"2.12.0","headers":true,"max_payload":1048576} \r\n'
CREATED = b'{"type":"io.nats.jetstream.api.v1.consumer_create_response","name":"c"}'
HEARTBEAT = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\n\r\n"
TIME = 1_789_012_345_678_901_234


class Peer:
    """The server's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.inbox = b""
        self.connect: dict[str, Any] = {}

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def line(self) -> bytes:
        return (await self.reader.readuntil(b"\r\n"))[:-2]

    async def greet(self, info: bytes = INFO) -> None:
        self.send(info)
        word, _, options = (await self.line()).partition(b" ")
        assert word == b"CONNECT"
        self.connect = json.loads(options)
        assert await self.line() == b"PING"
        self.send(b"PONG\r\n")

    async def asked(self) -> tuple[bytes, dict[str, Any]]:
        """The subscriptions and the request for a consumer: API subject, body."""
        word, subject, sid = (await self.line()).split(b" ")
        assert (word, sid) == (b"SUB", b"1")
        self.inbox = subject.removesuffix(b".d")
        assert await self.line() == b"SUB %b.r 2" % self.inbox
        _, subject, reply, size = (await self.line()).split(b" ")
        assert reply == self.inbox + b".r"
        body = await self.reader.readexactly(int(size) + 2)
        return subject, json.loads(body)

    def answer(self, body: bytes = CREATED) -> None:
        self.send(b"MSG %b.r 2 %d\r\n%b\r\n" % (self.inbox, len(body), body))

    async def serve(self) -> None:
        await self.greet()
        await self.asked()
        self.answer()

    def stored(self, seq: int, *, delivery: int, data: bytes = b"x", headers: bytes = b"") -> bytes:
        reply = b"$JS.ACK.S.c.1.%d.%d.%d.0" % (seq, delivery, TIME + seq)
        if headers:
            sizes = b"%d %d" % (len(headers), len(headers) + len(data))
            return b"HMSG s.%d 1 %b %b\r\n%b%b\r\n" % (seq, reply, sizes, headers, data)
        return b"MSG s.%d 1 %b %d\r\n%b\r\n" % (seq, reply, len(data), data)

    def status(self, headers: bytes, reply: bytes = b"") -> bytes:
        to = self.inbox + b".d 1" + (b" " + reply if reply else b"")
        return b"HMSG %b %d %d\r\n%b\r\n" % (to, len(headers), len(headers), headers)


Script = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[OriginAddress]:
    """A server that plays the script on each connection; an exception in it fails the test."""
    async with asyncio.TaskGroup() as tasks:

        async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await script(Peer(reader, writer))
            except (asyncio.IncompleteReadError, ConnectionError):
                pass  # the client left in the middle of the script
            finally:
                writer.close()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.create_task(play(reader, writer))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            yield OriginAddress((f"nats://127.0.0.1:{port}",))
        finally:
            server.close()
            await server.wait_closed()
            await turns()


@asynccontextmanager
async def connected(address: OriginAddress) -> AsyncIterator[OriginConnection]:
    origin = await OriginConnection.connect(address)
    try:
        yield origin
    finally:
        origin.close()
        await turns()


@asynccontextmanager
async def consuming(script: Script, **wanted: Any) -> AsyncIterator[OriginConnection]:
    """A client with its consumer, on a server that continues with the script."""

    async def whole(peer: Peer) -> None:
        await peer.serve()
        await script(peer)

    async with scripted(whole) as address, connected(address) as origin:
        await origin.consume("S", **{"start": 1, **wanted})
        yield origin


async def until_closed(peer: Peer) -> None:
    await peer.reader.read()
