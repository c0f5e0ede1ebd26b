"""Requests of the monitoring port that are answered without an HTTP library.

Owns: connections of the port from their first byte on, GET requests of documents and their answers.
May not touch: what is in the documents. Any other request (the console, other methods, bodies, what
is not HTTP) is not judged here: its connection is given to aiohttp, with all that it has sent.
Why: probes of /healthz and scrapes of /metrics are all that most nodes are asked, and aiohttp takes
a fifth of the memory of an idle node (docs/decisions/0055-memory-of-an-idle-node.md).
Bounds: HEAD_BYTES_MAX bytes of a request, as many again behind one that is being answered; the
times and budgets of http_connections.py.
Spec: RFC 9112."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol, TypeAlias, cast
from urllib.parse import parse_qsl

from broker.monitor.http_connections import HttpConnection, MonitorDoor, SendBudget
from broker.server.services import Query

HEAD_BYTES_MAX = 8190
IDLE_SECONDS = 15.0  # for the next request; then the socket is closed
SHORT = 64 << 10  # bytes of a document that are handed to the socket at once
_GET = b"GET /"
_LINE = re.compile(rb"GET (/[!\"$-~]*) HTTP/1\.([01])")  # of visible characters, without a fragment
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t -~]*")
_NOT_PLAIN = (b"transfer-encoding", b"upgrade", b"expect")


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a path answers, over any connection."""

    body: bytes
    kind: str = "application/json"
    status: int = 200


Answers: TypeAlias = "Mapping[str, Callable[[Query], Awaitable[HttpAnswer]]]"


FAILED = HttpAnswer(b"500 Internal Server Error\n", "text/plain; charset=utf-8", 500)


class OtherRequest(Exception):
    """Not a plain request, or not one of a document."""


@dataclass(frozen=True, slots=True)
class PlainRequest:
    path: str
    query: dict[str, str]
    keep_alive: bool
    size: int  # bytes of the request


def plain_request(received: bytes, paths: Container[str]) -> PlainRequest | None:
    """The request that these bytes begin with; None if more bytes are needed to tell. Raises
    OtherRequest."""
    end = received.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
    if end < 0:
        if not received.startswith(_GET[: len(received)]) or len(received) >= HEAD_BYTES_MAX:
            raise OtherRequest
        return None
    first, *lines = received[:end].split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise OtherRequest
    path, _, query = line[1].decode().partition("?")
    if path not in paths:
        raise OtherRequest
    keep_alive = _kept_alive(lines, newest=line[2] == b"1")
    values: dict[str, str] = {}
    for key, text in parse_qsl(query, keep_blank_values=True):
        values.setdefault(key, text)
    return PlainRequest(path, values, keep_alive, end + 4)


def _kept_alive(lines: list[bytes], *, newest: bool) -> bool:
    """Whether the connection stays open, by the headers. Raises OtherRequest."""
    hosts, keep_alive = 0, newest
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise OtherRequest
        name, value = name.lower(), value.strip().lower()
        if name in _NOT_PLAIN or (name == b"content-length" and value != b"0"):
            raise OtherRequest
        hosts += name == b"host"
        keep_alive = keep_alive and not (name == b"connection" and b"close" in value)
    if hosts > 1 or (newest and not hosts):
        raise OtherRequest
    return keep_alive


def head(answer: HttpAnswer, headers: Mapping[str, str], *, keep_alive: bool) -> bytes:
    """The status line and the headers."""
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    fields = {
        **headers,
        "Content-Type": answer.kind,
        "Content-Length": str(len(answer.body)),
        "Date": date,
        **({} if keep_alive else {"Connection": "close"}),
    }
    status = HTTPStatus(answer.status)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode()


class FullConnection(HttpConnection, Protocol):
    """A connection of aiohttp, before it has a transport."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class MonitorPort:
    """What all connections of the port share."""

    answers: Answers
    headers: Mapping[str, str]
    door: MonitorDoor
    budget: SendBudget
    spawn: Callable[[Coroutine[Any, Any, None], str], None]
    full: Callable[[], Awaitable[FullConnection]]  # a new connection of aiohttp


class PlainConnection(asyncio.Protocol):
    """One connection, until it closes or is given to aiohttp. One request at a time."""

    def __init__(self, port: MonitorPort) -> None:
        self.transport: asyncio.Transport | None = None
        self._port = port
        self._received = b""
        self._answering = False
        self._reading = True
        self._writable = asyncio.Event()
        self._writable.set()
        self._idle: asyncio.TimerHandle | None = None

    def force_close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has another base

    def connection_lost(self, _: Exception | None) -> None:
        self._left()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._answering:
            self._look()
        elif len(self._received) > HEAD_BYTES_MAX and self._reading and self.transport is not None:
            self._reading = False
            self.transport.pause_reading()

    # requests

    def _look(self) -> None:
        """Begin with what has arrived."""
        if self.transport is None or self.transport.is_closing():
            return
        try:
            request = plain_request(self._received, self._port.answers)
        except OtherRequest:
            self._begin(self._hand_over())
            return
        if request is None:
            self._read_on()
            return
        self._received = self._received[request.size :]
        self._port.door.asked(self)
        self._begin(self._answer(request))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._answering = True
        self._stop_timer()
        self._port.spawn(work, "monitor connection")

    async def _answer(self, request: PlainRequest) -> None:
        try:
            answer = await self._port.answers[request.path](request.query)
        except Exception:
            await self._send(FAILED, keep_alive=False)
            raise
        await self._send(answer, keep_alive=request.keep_alive)
        self._answering = False
        if request.keep_alive:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(IDLE_SECONDS, self.force_close)
            self._look()

    async def _send(self, answer: HttpAnswer, *, keep_alive: bool) -> None:
        """A long document is sent piece by piece, as fast as it is read. Returns when the client
        has taken most of it."""
        transport, body = self.transport, answer.body
        if transport is None:
            return
        first = head(answer, self._port.headers, keep_alive=keep_alive)
        size = len(body) if len(body) > SHORT else 0
        try:
            async with self._port.budget.sending(size):
                transport.write(first + body[:SHORT])
                for at in range(SHORT, len(body), SHORT):
                    await self._writable.wait()
                    transport.write(body[at : at + SHORT])
                await self._writable.wait()
        except TimeoutError:
            transport.abort()
        if not keep_alive:
            transport.close()

    async def _hand_over(self) -> None:
        full = await self._port.full()
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._port.door.replaced(self, full)
        self._left()
        transport.set_protocol(full)  # type: ignore[arg-type]
        full.connection_made(transport)
        if not self._reading:
            transport.resume_reading()
        full.data_received(self._received)

    def _left(self) -> None:
        self.transport = None
        self._stop_timer()

    def _read_on(self) -> None:
        if not self._reading and self.transport is not None:
            self._reading = True
            self.transport.resume_reading()

    def _stop_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
