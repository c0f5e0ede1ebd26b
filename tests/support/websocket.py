"""A WebSocket client on a raw socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from broker.config.options import WebSocketOptions
from broker.server.server import Server
from tests.support.server import EMPTY_CONNECT, PATIENCE, RawClient, running

PLAIN = WebSocketOptions(host="127.0.0.1", port=-1, no_tls=True)
REQUEST = (
    b"GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
BINARY, CLOSE, PING, PONG = 0x82, 0x88, 0x89, 0x8A


def port(server: Server) -> int:
    assert server.websocket is not None
    return server.websocket.port


def url(server: Server) -> str:
    assert server.websocket is not None
    return f"{server.websocket.scheme}://localhost:{port(server)}"


def masked(payload: bytes, first: int = BINARY) -> bytes:
    size = len(payload)
    wide = b"" if size < 126 else size.to_bytes(8, "big")
    return bytes((first, 0x80 | (127 if wide else size))) + wide + b"\0\0\0\0" + payload


_opened: list[asyncio.StreamWriter] = []


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Server]:
    """A server with a WebSocket port; the raw clients of a test are closed before it."""
    async with running(**{"websocket": PLAIN, **settings}) as server:
        try:
            yield server
        finally:
            while _opened:
                _opened.pop().close()


async def plain(server: Server) -> RawClient:
    """A client of the other port."""
    client = await RawClient.open(server)
    _opened.append(client.writer)
    return client


class RawWebSocket:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.info: dict[str, Any] = {}
        self._text = b""

    @classmethod
    async def dial(cls, server: Server) -> RawWebSocket:
        client = cls(*await asyncio.open_connection("127.0.0.1", port(server), limit=2**24))
        _opened.append(client.writer)
        return client

    @classmethod
    async def open(
        cls, server: Server, *, connect: bytes | None = EMPTY_CONNECT, headers: bytes = b""
    ) -> RawWebSocket:
        client = await cls.dial(server)
        client.writer.write(REQUEST + headers + b"\r\n")
        answer = await client.head()
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        first, info = await client.frame()
        assert first == BINARY
        assert info.startswith(b"INFO ")
        assert info.endswith(b"\r\n")
        assert info.count(b"\r\n") == 1  # alone in its message
        client.info = msgspec.json.decode(info[5:])
        if connect is not None:
            client.send(connect)
        return client

    def send(self, payload: bytes, first: int = BINARY) -> None:
        self.writer.write(masked(payload, first))

    async def head(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def frame(self) -> tuple[int, bytes]:
        async with asyncio.timeout(PATIENCE):
            first, size = await self.reader.readexactly(2)
            wide = {126: 2, 127: 8}.get(size, 0)
            if wide:
                size = int.from_bytes(await self.reader.readexactly(wide), "big")
            return first, await self.reader.readexactly(size)

    async def flush(self) -> bytes:
        """PING, and the protocol bytes before its PONG (INFO lines left out)."""
        self.send(b"PING\r\n")
        while b"PONG\r\n" not in self._text:
            first, payload = await self.frame()
            assert first == BINARY, (first, payload, self._text)
            self._text += payload
        got, _, self._text = self._text.partition(b"PONG\r\n")
        return b"".join(
            line for line in got.splitlines(keepends=True) if not line.startswith(b"INFO ")
        )

    async def close_frame(self) -> tuple[int, str, bytes]:
        """Status and reason the server closes with, and the protocol bytes before."""
        text = self._text
        while True:
            first, payload = await self.frame()
            if first == CLOSE:
                break
            text += payload
        async with asyncio.timeout(PATIENCE):
            assert await self.reader.read() == b""
        self.writer.close()
        return int.from_bytes(payload[:2], "big"), payload[2:].decode(), text

    async def end(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""
            finally:
                self.writer.close()
