"""A client connection to the origin of a mirror: exact in every byte of a message.

Owns: one connection, one inbox, the push consumer it reads through.
May not touch: the mirror's own stream.
The origin may be any NATS server with JetStream: this speaks the ordinary client protocol. Header
blocks and nanosecond times are kept as they come, which client libraries do not promise.
Spec: core sheet 1; JetStream sheet 5.7, 5.8, 8.3."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from broker.wire import headers as wire_headers

CONNECT_WITHIN_S = 5.0
HEARTBEAT_S = 2.0
READ_LIMIT = 1 << 20


class OriginLost(Exception):
    """The connection or the consumer is gone, or a gap was seen: begin again after last stored."""


class OriginRefused(Exception):
    """The origin answered with an API error."""


@dataclass(frozen=True, slots=True)
class OriginAddress:
    urls: tuple[str, ...]
    user: str = ""
    password: str = ""
    token: str = ""
    api: str = "$JS.API"
    trust_any_certificate: bool = False  # our own loopback


@dataclass(slots=True)
class OriginMessage:
    subject: bytes
    headers: bytes
    data: bytes
    seq: int
    time_ns: int
    pending: int


@dataclass(slots=True)
class Origin:
    """Connected and subscribed. `messages` yields in order, or raises OriginLost."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    api: str
    inbox: str = field(default_factory=lambda: f"_INBOX.{secrets.token_hex(11)}")
    _expected: int = 1  # consumer sequence of the next message

    @classmethod
    async def connect(cls, address: OriginAddress) -> Origin:
        """Try the URLs in turn. Raises OSError or OriginLost with the last reason."""
        failure: Exception = OriginLost("no url")
        for url in address.urls:
            try:
                async with asyncio.timeout(CONNECT_WITHIN_S):
                    return await cls._connect(url, address)
            except (OSError, OriginLost, TimeoutError, ssl.SSLError) as error:
                failure = error
        raise OriginLost(str(failure) or type(failure).__name__) from failure

    @classmethod
    async def _connect(cls, url: str, address: OriginAddress) -> Origin:
        parts = urlsplit(url if "//" in url else f"nats://{url}")
        host, port = parts.hostname or "127.0.0.1", parts.port or 4222
        reader, writer = await asyncio.open_connection(host, port, limit=READ_LIMIT)
        origin = cls(reader, writer, address.api)
        try:
            info = msgspec.json.decode((await origin._line())[5:])
            if info.get("tls_required") or parts.scheme == "tls":
                context = ssl.create_default_context()
                if address.trust_any_certificate:
                    context.check_hostname = False
                    context.verify_mode = ssl.CERT_NONE
                await writer.start_tls(context, server_hostname=host)
            await origin._greet(address, parts.username or "", parts.password or "")
        except BaseException:
            writer.close()
            raise
        return origin

    async def _greet(self, address: OriginAddress, user: str, password: str) -> None:
        options: dict[str, Any] = {
            "verbose": False, "pedantic": False, "headers": True, "no_responders": True,
            "protocol": 0, "lang": "jetraft", "version": "0.1", "name": "mirror",
        }  # fmt: skip
        if address.token:
            options["auth_token"] = address.token
        if address.user or user:
            options["user"] = address.user or user
            options["pass"] = address.password or password
        self.writer.write(b"CONNECT " + msgspec.json.encode(options) + b"\r\nPING\r\n")
        while (line := await self._line()) != b"PONG":
            if line.startswith(b"-ERR"):
                raise OriginLost(line.decode(errors="replace"))

    def close(self) -> None:
        self.writer.close()

    async def consume(self, stream: str, *, start: int, filter_subject: str) -> None:
        """Create the consumer. Its messages come from `messages`."""
        config: dict[str, Any] = {
            "deliver_subject": f"{self.inbox}.d", "deliver_policy": "by_start_sequence",
            "opt_start_seq": start, "ack_policy": "none", "max_deliver": 1, "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_S * 1e9), "inactive_threshold": 10_000_000_000,
            "mem_storage": True, "num_replicas": 1, "replay_policy": "instant",
        }  # fmt: skip
        if filter_subject:
            config["filter_subject"] = filter_subject
        body = msgspec.json.encode({"stream_name": stream, "config": config})
        self.writer.write(
            f"SUB {self.inbox}.d 1\r\nSUB {self.inbox}.r 2\r\n"
            f"PUB {self.api}.CONSUMER.CREATE.{stream} {self.inbox}.r {len(body)}\r\n".encode()
            + body
            + b"\r\n"
        )
        async with asyncio.timeout(CONNECT_WITHIN_S):
            while True:
                sid, _, headers, data, _ = await self._message()
                if sid == b"2":
                    break
                raise OriginLost("a message came before the consumer was confirmed")
        if headers:
            code, text = wire_headers.status(headers)
            raise OriginRefused(f"{code} {text.decode(errors='replace')}".strip())
        answer = msgspec.json.decode(data)
        if "error" in answer:
            raise OriginRefused(str(answer["error"].get("description", "refused")))

    async def next(self) -> OriginMessage:
        """The next message. Answers heartbeats and flow control on the way."""
        while True:
            async with asyncio.timeout(3 * HEARTBEAT_S):
                _, subject, headers, data, reply = await self._message()
            if not reply.startswith(b"$JS.ACK."):
                self._control(headers, reply)
                continue
            tokens = reply.split(b".")
            seq, consumer_seq, time_ns, pending = (int(token) for token in tokens[-4:])
            if consumer_seq != self._expected:
                raise OriginLost(f"expected delivery {self._expected}, got {consumer_seq}")
            self._expected += 1
            return OriginMessage(subject, headers, data, seq, time_ns, pending)

    def buffered(self) -> bool:
        """Whether more can be read without waiting: a batch goes on while it can."""
        return b"\r\n" in self.reader._buffer  # type: ignore[attr-defined]  # noqa: SLF001

    def _control(self, headers: bytes, reply: bytes) -> None:
        if reply:  # a flow control request
            self.writer.write(b"PUB %b 0\r\n\r\n" % reply)
            return
        stalled = wire_headers.get(headers, b"Nats-Consumer-Stalled")
        if stalled:
            self.writer.write(b"PUB %b 0\r\n\r\n" % stalled)
        last = wire_headers.get(headers, b"Nats-Last-Consumer")
        if last is not None and int(last) != self._expected - 1:
            raise OriginLost(
                f"the origin has delivered up to {int(last)}, we have {self._expected - 1}"
            )

    async def _message(self) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """sid, subject, headers, payload, reply of the next MSG or HMSG."""
        while True:
            line = await self._line()
            words = line.split(b" ")
            if words[0] == b"MSG":
                payload = (await self._exactly(int(words[-1]) + 2))[:-2]
                return words[2], words[1], b"", payload, words[3] if len(words) == 5 else b""
            if words[0] == b"HMSG":
                header_size, total = int(words[-2]), int(words[-1])
                body = (await self._exactly(total + 2))[:-2]
                reply = words[3] if len(words) == 6 else b""
                return words[2], words[1], body[:header_size], body[header_size:], reply
            if words[0] == b"PING":
                self.writer.write(b"PONG\r\n")
            elif words[0] == b"-ERR":
                raise OriginLost(line.decode(errors="replace"))

    async def _line(self) -> bytes:
        try:
            return (await self.reader.readuntil(b"\r\n"))[:-2]
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
            raise OriginLost("the origin closed the connection") from error

    async def _exactly(self, size: int) -> bytes:
        try:
            return await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise OriginLost("the origin closed the connection") from error
