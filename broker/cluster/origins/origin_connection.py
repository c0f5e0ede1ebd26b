"""The client connection to the origin of a mirror or source; messages are copied byte for byte.

Owns: one connection, one inbox, the push consumer it reads through.
May not touch: the stream that is filled.
The origin may be any NATS server with JetStream: this speaks the ordinary client protocol. Header
blocks and nanosecond times are kept exactly as received, which client libraries do not promise.
Spec: NATS client protocol; NATS JetStream push consumers, flow control and heartbeats."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from broker.cluster.origins.origin_errors import (
    SETUP_FAILED,
    OriginLost,
    OriginRefused,
    WrongConsumer,
)
from broker.cluster.origins.origin_login import OriginAddress, credentials
from broker.cluster.origins.receive_buffer import READ_LIMIT, ReceiveBuffer
from broker.jetstream.times import rfc3339
from broker.server.process.remote_login import LoginFailed, tls_context
from broker.store.block.codec import BlockBuilder, append_delivered
from broker.wire import headers as wire_headers

CONNECT_WITHIN_S = 5.0
HEARTBEAT_S = 2.0
MESSAGE_BYTES_MAX = 65 << 20  # the largest payload that a server can allow, and its headers
# The flow control of a well-behaved origin stops far below this; others may send without limit.
EARLY_BYTES_MAX = 2 * MESSAGE_BYTES_MAX
EARLY_OVERHEAD_BYTES = 500  # of a message besides its bytes


@dataclass(slots=True)
class OriginMessage:
    subject: bytes
    headers: bytes
    data: bytes
    seq: int
    time_ns: int
    pending: int


class _Refusal(msgspec.Struct):
    description: str = "refused"
    code: int = 500
    err_code: int = SETUP_FAILED


class _Config(msgspec.Struct):
    ack_policy: str = ""
    idle_heartbeat: int = 0


class _Answer(msgspec.Struct):
    error: _Refusal | None = None
    config: _Config | None = None


@dataclass(slots=True)
class _Head:
    """A MSG or HMSG line."""

    sid: bytes
    subject: bytes
    reply: bytes
    header_size: int
    size: int  # of headers and payload

    @classmethod
    def of(cls, line: bytes) -> _Head | None:
        """None when the line is something else. Raises ValueError when it is damaged."""
        words = line.split(b" ")
        if words[0] not in (b"MSG", b"HMSG"):
            return None
        sizes = 1 if words[0] == b"MSG" else 2
        if not sizes + 3 <= len(words) <= sizes + 4:
            raise ValueError("wrong number of fields")
        header_size = int(words[-2]) if sizes == 2 else 0
        size = int(words[-1])
        if not 0 <= header_size <= size <= MESSAGE_BYTES_MAX:
            raise ValueError("impossible size")
        reply = words[3] if len(words) == sizes + 4 else b""
        return cls(words[2], words[1], reply, header_size, size)

    @property
    def stored(self) -> bool:
        """A message of the stream, not a heartbeat or a flow control request."""
        return self.reply.startswith(b"$JS.ACK.")


_Message = tuple[_Head, bytes, bytes]  # with headers and payload


def _numbers(head: _Head) -> tuple[int, int, int, int]:
    """Stream and consumer sequence, time, and number of pending messages, from the ack reply. The
    newer form has two more tokens (domain, account hash) before them, and may have more after."""
    tokens = head.reply.split(b".")
    first = 5 if len(tokens) < 11 else 7
    seq, consumer_seq, time_ns, pending = (int(token) for token in tokens[first : first + 4])
    return seq, consumer_seq, time_ns, pending


@dataclass(slots=True)
class OriginConnection:
    """Connected and subscribed. `next` returns messages in order. Whatever the other side sends, it
    raises only OriginLost, or TimeoutError if nothing arrives."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    api: str
    inbox: str = field(default_factory=lambda: f"_INBOX.{secrets.token_hex(11)}")
    deliver: str = ""  # where the consumer delivers; "": to the inbox
    heard_s: float = 0.0  # when the last message of the consumer arrived
    patience_s: float = 3 * HEARTBEAT_S
    waiting: ReceiveBuffer = field(init=False)
    info: dict[str, Any] = field(default_factory=dict)  # the server's INFO
    _expected: int = 1  # consumer sequence of the next message
    _last_seq: int = 0  # the origin's sequence of the last message
    _settle: Callable[[], Awaitable[None]] | None = None  # before flow control is answered
    _early: deque[_Message] = field(default_factory=deque)  # arrived before the answer to CREATE

    def __post_init__(self) -> None:
        self.waiting = ReceiveBuffer(self.reader)

    @classmethod
    async def connect(cls, address: OriginAddress) -> OriginConnection:
        """Try the URLs in turn. Raises OriginLost with the last reason."""
        reason, cause = "no url", None
        for url in address.urls:
            try:
                async with asyncio.timeout(CONNECT_WITHIN_S):
                    return await cls._connect(url, address)
            except (OSError, OriginLost, LoginFailed, ValueError) as error:
                cause = error
                place = url.rpartition("//")[2].rpartition("@")[2]  # without a password
                reason = f"{place}: {str(error) or type(error).__name__}"
        raise OriginLost(reason) from cause

    @classmethod
    async def _connect(cls, url: str, address: OriginAddress) -> OriginConnection:
        parts = urlsplit(url if "//" in url else f"nats://{url}")
        host, port = parts.hostname or "127.0.0.1", parts.port or 4222
        reader, writer = await asyncio.open_connection(host, port, limit=READ_LIMIT)
        origin = cls(reader, writer, address.api)
        tls = address.tls
        first = tls is not None and tls.handshake_first
        try:
            if first:
                await writer.start_tls(tls_context(tls), server_hostname=host)
            info = await origin._info()
            wanted = info.get("tls_required") or parts.scheme == "tls" or tls is not None
            if wanted and not first:
                await writer.start_tls(tls_context(tls), server_hostname=host)
            await origin._greet(credentials(address, parts, str(info.get("nonce", ""))))
        except BaseException:
            writer.close()
            raise
        return origin

    @classmethod
    async def over(
        cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, api: str = "$JS.API"
    ) -> OriginConnection:
        """Use an open connection to a server that requires no credentials."""
        origin = cls(reader, writer, api)
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                await origin._info()
                await origin._greet({})
        except BaseException:
            writer.close()
            raise
        return origin

    async def _info(self) -> dict[str, Any]:
        line = await self.waiting.line()
        if not line.startswith(b"INFO "):
            raise OriginLost("this is not a NATS server")
        self.info = msgspec.json.decode(line[5:], type=dict[str, Any])
        return self.info

    async def _greet(self, login: dict[str, str]) -> None:
        options: dict[str, Any] = {
            "verbose": False, "pedantic": False, "headers": True, "no_responders": True,
            "protocol": 0, "lang": "jetraft", "version": "0.1", "name": "mirror",
        }  # fmt: skip
        connect = msgspec.json.encode(options | login)
        self.writer.write(b"CONNECT " + connect + b"\r\nPING\r\n")
        while (line := await self.waiting.line()) != b"PONG":
            self.between(line)

    def close(self) -> None:
        self.writer.close()

    async def request(self, subject: str, body: bytes) -> bytes:
        """The answer to a request, before there is a consumer. Raises OriginRefused."""
        inbox = f"{self.inbox}.q"
        ask = f"SUB {inbox} 3\r\nUNSUB 3 1\r\nPUB {subject} {inbox} {len(body)}\r\n"
        self.writer.write(ask.encode() + body + b"\r\n")
        async with asyncio.timeout(CONNECT_WITHIN_S):
            _, headers, data = await self._message()
        _raise_status(headers)
        return data

    async def consume(
        self, stream: str, *, start: int, start_time_ns: int = 0, filters: tuple[str, ...] = ()
    ) -> None:
        """Create the consumer; its messages come from `next`. Raises OriginRefused. A start time
        takes precedence over a start sequence. `direct` hides the consumer at the origin and lets
        it read streams that consumers of clients may not."""
        deliver = self.deliver or f"{self.inbox}.d"
        config: dict[str, Any] = {
            "deliver_subject": deliver, "deliver_policy": "by_start_sequence",
            "opt_start_seq": start, "ack_policy": "none", "max_deliver": 1, "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_S * 1e9), "inactive_threshold": 10_000_000_000,
            "mem_storage": True, "num_replicas": 1, "replay_policy": "instant", "direct": True,
        }  # fmt: skip
        if start_time_ns:
            del config["opt_start_seq"]
            config |= {"deliver_policy": "by_start_time", "opt_start_time": rfc3339(start_time_ns)}
        if len(filters) == 1:
            config["filter_subject"] = filters[0]
        elif filters:
            config["filter_subjects"] = filters
        body = msgspec.json.encode({"stream_name": stream, "config": config})
        await self._begin(deliver, f"{self.api}.CONSUMER.CREATE.{stream}", body)

    async def resume(
        self,
        stream: str,
        consumer: str,
        deliver_subject: str,
        *,
        settle: Callable[[], Awaitable[None]],
    ) -> None:
        """Read through an existing durable consumer, from its ack floor on. It treats answers to
        flow control as acks, so `settle` must return only when all that was read is stored.
        Raises OriginRefused."""
        request = f"{self.api}.CONSUMER.RESET.{stream}.{consumer}"
        config = await self._begin(deliver_subject, request, b"")
        if config is None or config.ack_policy != "flow_control":
            raise WrongConsumer
        self._settle = settle
        self.patience_s = max(3 * config.idle_heartbeat / 1e9, self.patience_s)
        # Messages sent before the reset have numbers of the old sequence.
        while self._early and not self._is_first(self._early[0]):
            self._early.popleft()

    def _is_first(self, message: _Message) -> bool:
        head = message[0]
        return head.stored and _numbers(head)[1] == 1

    async def _begin(self, deliver_subject: str, request: str, body: bytes) -> _Config | None:
        """Subscribe, ask, and wait for the answer."""
        self.writer.write(
            f"SUB {deliver_subject} 1\r\nSUB {self.inbox}.r 2\r\n"
            f"PUB {request} {self.inbox}.r {len(body)}\r\n".encode()
            + body
            + b"\r\n"
        )
        held = 0
        async with asyncio.timeout(CONNECT_WITHIN_S):
            while (message := await self._message())[0].sid != b"2":
                # A server may deliver before it answers.
                held += message[0].size + EARLY_OVERHEAD_BYTES
                if held > EARLY_BYTES_MAX:
                    raise OriginLost("the origin delivers without an answer to the request")
                self._early.append(message)
        _, headers, data = message
        _raise_status(headers)
        try:
            answer = msgspec.json.decode(data, type=_Answer)
        except ValueError as error:
            raise OriginLost(f"the origin answered {data[:100]!r}") from error
        if answer.error is not None:
            refusal = answer.error
            raise OriginRefused(refusal.description, code=refusal.code, err_code=refusal.err_code)
        return answer.config

    async def next(self) -> OriginMessage:
        """The next message. Handles heartbeats and flow control requests that come before it."""
        while True:
            if self._early:
                head, headers, data = self._early.popleft()
            else:
                async with asyncio.timeout(self.patience_s):
                    head, headers, data = await self._message()
            self.heard_s = time.monotonic()
            try:
                if head.stored:
                    return self._stored(head, headers, data)
                await self._control(headers, head.reply)
            except ValueError as error:
                raise OriginLost(f"cannot read the numbers of {head.reply!r}") from error

    async def take(self, builder: BlockBuilder, *, rows_max: int, bytes_max: int) -> int:
        """Append what has arrived to the builder, at least one message, with the sequences and
        times of the origin. Returns how many messages are pending after the last one. Waits, and
        handles heartbeats and flow control, only before the first message."""
        pending = self._take_run(builder, rows_max, bytes_max)
        if pending < 0:
            one = await self.next()
            builder.append(one.subject, one.headers, one.data, time_ns=one.time_ns, seq=one.seq)
            pending = one.pending
            more = self._take_run(builder, rows_max, bytes_max)
            pending = more if more >= 0 else pending
        return pending

    def _take_run(self, builder: BlockBuilder, rows_max: int, bytes_max: int) -> int:
        """Append the buffered messages in one call of the codec. Returns -1 if there are none."""
        if self._early:
            return -1
        waiting, before = self.waiting, builder.rows
        waiting.pull()
        waiting.at, pending = append_delivered(
            builder,
            waiting.received,
            waiting.at,
            expected=self._expected,
            rows_max=rows_max,
            bytes_max=bytes_max,
        )
        if builder.rows > before:
            self._expected += builder.rows - before
            self._last_seq = builder.last_seq
            self.heard_s = time.monotonic()
        return pending

    def buffered(self) -> bool:
        """Whether the next message of the stream is buffered completely, so that a batch can take
        it without waiting. A heartbeat does not count: the message after it may take long."""
        if self._early:
            return self._early[0][0].stored
        waiting = self.waiting
        waiting.pull()
        end = waiting.received.find(b"\r\n", waiting.at)
        try:
            head = _Head.of(waiting.received[waiting.at : end]) if end >= 0 else None
        except ValueError:
            return False  # next() raises the error
        return head is not None and head.stored and len(waiting.received) >= end + head.size + 4

    def _stored(self, head: _Head, headers: bytes, data: bytes) -> OriginMessage:
        seq, consumer_seq, time_ns, pending = _numbers(head)
        if consumer_seq != self._expected:
            raise OriginLost(f"expected delivery {self._expected}, got {consumer_seq}")
        self._expected += 1
        self._last_seq = seq
        return OriginMessage(head.subject, headers, data, seq, time_ns, pending)

    async def _control(self, headers: bytes, reply: bytes) -> None:
        if reply:  # a flow control request
            await self._answer_flow(reply)
            return
        stalled = wire_headers.get(headers, b"Nats-Consumer-Stalled")
        if stalled:
            await self._answer_flow(stalled)
        last = wire_headers.get(headers, b"Nats-Last-Consumer")
        if last is not None and int(last) != self._expected - 1:
            raise OriginLost(f"delivered up to {int(last)}, received {self._expected - 1}")

    async def _answer_flow(self, reply: bytes) -> None:
        """Report the position to a durable consumer, which acknowledges everything up to it."""
        if self._settle is None or not self._last_seq:
            self.writer.write(b"PUB %b 0\r\n\r\n" % reply)
            return
        await self._settle()
        names = (b"Nats-Last-Consumer", b"Nats-Last-Stream")
        reached = (b"%d" % (self._expected - 1), b"%d" % self._last_seq)
        position = wire_headers.build(b"", list(zip(names, reached, strict=True)))
        self.writer.write(
            b"HPUB %b %d %d\r\n%b\r\n" % (reply, len(position), len(position), position)
        )

    async def _message(self) -> _Message:
        """The next MSG or HMSG."""
        while True:
            line = await self.waiting.line()
            try:
                head = _Head.of(line)
            except ValueError as error:
                raise OriginLost(f"the origin sent {line[:100]!r}: {error}") from error
            if head is None:
                self.between(line)
                continue
            body = await self.waiting.exactly(head.size + 2)
            if not body.endswith(b"\r\n"):
                raise OriginLost(f"message longer than {line[:100]!r} says")
            return head, body[: head.header_size], body[head.header_size : -2]

    def between(self, line: bytes) -> None:
        """Operations between messages: PING is answered, INFO and +OK are ignored."""
        if line == b"PING":
            self.writer.write(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            raise OriginLost(line.decode(errors="replace"))


def _raise_status(headers: bytes) -> None:
    code, text = wire_headers.status(headers)
    if code:
        raise OriginRefused(f"{code} {text.decode(errors='replace')}".strip())
