"""A NATS client on virtual time: connects, reconnects to another node, publishes, subscribes.

Owns: one connection at a time, the subscriptions, the requests that wait for an answer.
May not touch: nodes, except through a byte stream.
Spec: NATS client protocol, as the official clients use it: subscriptions are repeated after a
reconnect, requests in flight are not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from broker.scan.protocol import ScanRequest, encode_request
from chaos.sim.clients.scan_reader import ScanAnswer
from chaos.sim.world.byte_stream import ByteStream
from chaos.sim.world.node_loop import NodeLoop
from chaos.sim.world.virtual_time import WorldTime

RECONNECT_S = 0.05
CONNECT = {
    "verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1,
}  # fmt: skip


class ConnectTarget(Protocol):
    """A node, as far as clients see it."""

    name: str

    def accept(self, stream: ByteStream) -> bool: ...


@dataclass(slots=True)
class ClientMessage:
    subject: bytes
    reply: bytes
    headers: bytes
    data: bytes

    @property
    def status(self) -> int:
        """The status in the header line, such as 503; 0: none."""
        line = self.headers[:16]
        return int(line[9:12]) if line.startswith(b"NATS/1.0 ") and line[9:12].isdigit() else 0

    def json(self) -> Any:
        return json.loads(self.data)


class SimClient:
    """Coroutines of workloads call it; they run on the loop of all clients."""

    def __init__(
        self,
        name: str,
        loop: NodeLoop,
        targets: Sequence[ConnectTarget],
        *,
        world: WorldTime,
        rng: Random,
        delay_ns: Callable[[], int],
    ) -> None:
        self.name = name
        self.node: ConnectTarget | None = None
        self.connects = 0
        self._loop = loop
        self._targets = list(targets)
        self._world = world
        self._rng = rng
        self._delay_ns = delay_ns
        self._stream: ByteStream | None = None
        self._connected = asyncio.Event()
        self._buffer = bytearray()
        self._subs: dict[int, tuple[bytes, bytes, Callable[[ClientMessage], None]]] = {}
        self._last_sid = 0
        self._inbox = f"_INBOX.{name}.".encode()
        self._requests: dict[bytes, asyncio.Future[ClientMessage]] = {}
        self._last_request = 0
        self._closed = False
        self._bulk: ScanAnswer | None = None
        self.subscribe(self._inbox + b"*", self._answered)

    # -- connection

    def start(self) -> None:
        self._loop.call_soon(self._connect)

    def close(self) -> None:
        self._closed = True
        if self._stream is not None:
            self._stream.close()

    def disconnect(self) -> None:
        """Leave this node and connect to another one."""
        if self._stream is not None:
            self._stream.close()
            self._lost()

    def _connect(self) -> None:
        if self._closed:
            return
        self.node = self._rng.choice(self._targets)
        self._buffer.clear()
        self._bulk = None
        stream = ByteStream(
            self._world,
            self._rng,
            self._delay_ns,
            address=("10.0.0.1", 40_000),
            on_bytes=lambda data: self._enqueue(self._received, stream, data),
            on_lost=lambda: self._enqueue(self._stream_lost, stream),
        )
        if not self.node.accept(stream):
            self._retry()
            return
        self._stream = stream
        stream.send(b"CONNECT " + json.dumps(CONNECT | {"name": self.name}).encode() + b"\r\n")
        for sid, (subject, queue, _) in self._subs.items():
            stream.send(b"SUB %b %b%d\r\n" % (subject, queue + b" " if queue else b"", sid))
        stream.send(b"PING\r\n")

    def _enqueue(self, action: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon(action, *arguments)

    def _retry(self) -> None:
        self._loop.call_later(RECONNECT_S * (1 + self._rng.random()), self._connect)

    def _stream_lost(self, stream: ByteStream) -> None:
        if stream is self._stream:
            self._lost()

    def _lost(self) -> None:
        self._stream = None
        self._connected.clear()
        if not self._closed:
            self._retry()

    # -- parsing

    def _received(self, stream: ByteStream, data: bytes) -> None:
        if stream is not self._stream:
            return
        self._buffer += data
        while self._stream is stream and self._take_one():
            pass

    def _take_one(self) -> bool:
        buffer = self._buffer
        if self._bulk is not None and self._bulk.is_next(buffer):
            taken, ended = self._bulk.take(buffer)
            self._bulk = None if ended else self._bulk
            return taken
        end = buffer.find(b"\r\n")
        if end < 0:
            return False
        line = bytes(buffer[:end])
        words = line.split(b" ")
        if words[0] in (b"MSG", b"HMSG"):
            size = int(words[-1])
            if len(buffer) < end + 2 + size + 2:
                return False
            body = bytes(buffer[end + 2 : end + 2 + size])
            del buffer[: end + 2 + size + 2]
            self._message(words, body)
            return True
        del buffer[: end + 2]
        if line == b"PING":
            self._send(b"PONG\r\n")
        elif line == b"PONG":
            self.connects += 1
            self._connected.set()
        return True

    def _message(self, words: list[bytes], body: bytes) -> None:
        with_headers = words[0] == b"HMSG"
        fixed = 5 if with_headers else 4
        reply = words[3] if len(words) > fixed else b""
        split = int(words[-2]) if with_headers else 0
        sub = self._subs.get(int(words[2]))
        if sub is not None:
            sub[2](ClientMessage(words[1], reply, body[:split], body[split:]))

    # -- what workloads call

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    async def until_connected(self) -> None:
        await self._connected.wait()

    def _send(self, data: bytes) -> None:
        if self._stream is not None:
            self._stream.send(data)

    def subscribe(
        self, subject: bytes, on_message: Callable[[ClientMessage], None], queue: bytes = b""
    ) -> int:
        self._last_sid += 1
        sid = self._last_sid
        self._subs[sid] = (subject, queue, on_message)
        self._send(b"SUB %b %b%d\r\n" % (subject, queue + b" " if queue else b"", sid))
        return sid

    def unsubscribe(self, sid: int) -> None:
        self._subs.pop(sid, None)
        self._send(b"UNSUB %d\r\n" % sid)

    def publish(
        self, subject: bytes, data: bytes, *, reply: bytes = b"", headers: bytes = b""
    ) -> None:
        """Lost when there is no connection."""
        target = subject + b" " + reply if reply else subject
        if headers:
            sizes = b"%d %d" % (len(headers), len(headers) + len(data))
            self._send(b"HPUB %b %b\r\n%b%b\r\n" % (target, sizes, headers, data))
        else:
            self._send(b"PUB %b %d\r\n%b\r\n" % (target, len(data), data))

    async def request(
        self, subject: bytes, data: bytes = b"", *, headers: bytes = b"", timeout_s: float = 5.0
    ) -> ClientMessage:
        """Raises TimeoutError: whether it was carried out is unknown."""
        await self.until_connected()
        self._last_request += 1
        inbox = self._inbox + b"%d" % self._last_request
        future: asyncio.Future[ClientMessage] = self._loop.create_future()
        self._requests[inbox] = future
        self.publish(subject, data, reply=inbox, headers=headers)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            self._requests.pop(inbox, None)

    def new_inbox(self) -> bytes:
        """A subject for several answers; the caller subscribes to it."""
        self._last_request += 1
        return b"_MANY.%b.%d" % (self.name.encode(), self._last_request)

    async def scan(self, request: ScanRequest, *, timeout_s: float) -> list[tuple[int, bytes]]:
        """The rows of a bulk read from the node of this connection, which must have no other
        request in flight. Raises ScanRefused, TimeoutError; the client then leaves the node."""
        await self.until_connected()
        future: asyncio.Future[list[tuple[int, bytes]]] = self._loop.create_future()
        self._bulk = ScanAnswer(future)
        self._send(encode_request(request))
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            self.disconnect()  # what is left of the answer would be taken for messages
            raise

    async def api(self, subject: str, request: Any = None, *, timeout_s: float = 5.0) -> Any:
        """The JSON answer of a JetStream API request. Raises TimeoutError."""
        body = b"" if request is None else json.dumps(request).encode()
        answer = await self.request(f"$JS.API.{subject}".encode(), body, timeout_s=timeout_s)
        if answer.status:
            return {"error": {"code": answer.status, "err_code": 0}}
        return answer.json()

    def _answered(self, message: ClientMessage) -> None:
        future = self._requests.get(message.subject)
        if future is not None and not future.done():
            future.set_result(message)


def header_block(**fields: str) -> bytes:
    """Headers as they go over the wire; an underscore in a name stands for a dash."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return b"NATS/1.0\r\n" + lines.encode() + b"\r\n"
