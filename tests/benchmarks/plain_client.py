"""A small NATS client for benchmarks: as little work per answer as possible.

Owns: one connection, its inbox, and the answers of requests.
May not touch: anything of the broker: it must measure any server alike."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from typing import Any

REQUEST_WITHIN_S = 60.0


class PlainClient(asyncio.Protocol):
    def __init__(self, user: str) -> None:
        self.user = user
        self.inbox = b"_INBOX." + secrets.token_hex(6).encode()
        self.on_answer: Callable[[bytes, bytes], None] | None = None
        self.on_pong: Callable[[], None] | None = None
        self.closed = False
        self.replicas = 1  # of streams that it creates
        self.acknowledges = False  # every message that has a reply subject
        self.errors = 0
        self._buffer = bytearray()
        self._need = 0
        self._subject = b""
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._number = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: Any = None

    @classmethod
    async def open(cls, port: int, user: str) -> PlainClient:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(user), "127.0.0.1", port)
        options = {
            "user": user, "pass": user, "verbose": False, "pedantic": False,
            "headers": True, "no_responders": True, "lang": "plain", "version": "1",
        }  # fmt: skip
        client.send(b"CONNECT %s\r\nSUB %s.* 1\r\nPING\r\n" % (_json(options), client.inbox))
        await client._ready
        return client

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._writable.set()
        waiting = [*self._waiting.values(), self._ready]
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionResetError("the server has closed the connection"))
                future.exception()  # retrieved, if nobody waits

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        while True:
            if self._need:
                if len(buffer) - at < self._need:
                    break
                payload = bytes(buffer[at : at + self._need - 2])
                at += self._need
                self._need = 0
                self._answer(self._subject, payload)
                continue
            end = buffer.find(b"\r\n", at)
            if end < 0:
                break
            line = bytes(buffer[at:end])
            at = end + 2
            if line.startswith((b"MSG", b"HMSG")):
                parts = line.split()
                self._subject, self._need = parts[1], int(parts[-1]) + 2
                has_reply = len(parts) == (5 if line.startswith(b"MSG") else 6)
                if has_reply and self.acknowledges:
                    self.send(b"PUB %s 0\r\n\r\n" % parts[3])
            elif line == b"PONG":
                self._pong()
            elif line == b"PING":
                self.send(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                self.errors += 1
        del buffer[:at]

    def _pong(self) -> None:
        if not self._ready.done():
            self._ready.set_result(None)
        elif self.on_pong is not None:
            self.on_pong()

    def _answer(self, subject: bytes, payload: bytes) -> None:
        future = self._waiting.pop(subject, None)
        if future is not None:
            if not future.done():
                future.set_result(payload)
        elif self.on_answer is not None:
            self.on_answer(subject, payload)

    def send(self, data: bytes) -> None:
        if not self.closed:
            self._transport.write(data)

    async def flood(self, data: bytes) -> None:
        """Send as fast as the server reads."""
        self.send(data)
        await self._writable.wait()
        await asyncio.sleep(0)

    async def request(self, subject: bytes, payload: bytes) -> bytes:
        self._number += 1
        reply = b"%s.%d" % (self.inbox, self._number)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[reply] = future
        self.send(b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(payload), payload))
        async with asyncio.timeout(REQUEST_WITHIN_S):
            return await future

    async def api(self, name: str, body: object = None) -> dict[str, Any]:
        if name.startswith("STREAM.CREATE") and isinstance(body, dict) and self.replicas > 1:
            body = body | {"num_replicas": self.replicas}
        payload = _json(body) if body is not None else b""
        answer: dict[str, Any] = json.loads(
            await self.request(b"$JS.API." + name.encode(), payload)
        )
        return answer

    async def close(self) -> None:
        self.closed = True
        self._transport.close()
        await asyncio.sleep(0)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
