"""WebSocket clients that misbehave: bad requests, bad frames, slow or endless input."""

from __future__ import annotations

import asyncio
import zlib

import pytest
from msgspec.structs import replace

from broker.config.options import SECOND, Limits
from broker.server.client import operations
from broker.server.client.connection import Connection
from broker.server.listeners import websocket, websocket_listener
from broker.wire import websocket as frames
from tests.support.server import run, until
from tests.support.websocket import (
    BINARY,
    PING,
    PLAIN,
    PONG,
    REQUEST,
    RawWebSocket,
    masked,
    plain,
    serving,
)


@pytest.mark.parametrize(
    ("request_bytes", "answer"),
    [
        (b"PUT / HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 405 Method Not Allowed"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"\x16\x03\x01 nonsense\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (REQUEST + b"Origin: http://there\r\n\r\n", b"HTTP/1.1 403 Forbidden"),
        (REQUEST + b"\r\n" + masked(b"PING\r\n"), b"HTTP/1.1 400 Bad Request"),
        (REQUEST.replace(b"GET /", b"GET /mqtt") + b"\r\n", b"HTTP/1.1 404 Not Found"),
    ],
)
def test_bad_requests_are_answered_and_closed(request_bytes: bytes, answer: bytes) -> None:
    async def test() -> None:
        async with serving(websocket=replace(PLAIN, same_origin=True)) as server:
            client = await RawWebSocket.dial(server)
            client.writer.write(request_bytes)
            told = await client.end()
            assert told.partition(b"\r\n")[0] == answer
            assert b"INFO" not in told
            assert not server.connections
            assert await (await RawWebSocket.open(server)).flush() == b""

    run(test())


def test_a_request_may_come_byte_by_byte_and_be_long() -> None:
    async def test() -> None:
        async with serving() as server:
            client = await RawWebSocket.dial(server)
            for byte in REQUEST:
                client.writer.write(bytes((byte,)))
                await asyncio.sleep(0)
            client.writer.write(b"X-Long: " + b"x" * 100_000 + b"\r\nX: 1\r\nX: 2\r\n\r\n")
            assert (await client.head()).startswith(b"HTTP/1.1 101 ")

    run(test())


def test_a_request_head_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "HEAD_MAX", 10_000)

    async def test() -> None:
        async with serving() as server:
            client = await RawWebSocket.dial(server)
            client.writer.write(b"GET / HTTP/1.1\r\nX: " + b"x" * 10_001)
            assert (await client.end()).startswith(b"HTTP/1.1 400 ")

    run(test())


def test_a_slow_upgrade_request_times_out() -> None:
    async def test() -> None:
        options = replace(PLAIN, handshake_timeout_ns=SECOND // 10)
        async with serving(websocket=options) as server:
            assert server.websocket is not None
            slow = await RawWebSocket.dial(server)
            slow.writer.write(REQUEST)
            assert await slow.end() == b""
            assert not server.websocket.waiting

    run(test())


def test_the_deadline_applies_to_the_request_only() -> None:
    async def test() -> None:
        async with serving(websocket=PLAIN) as server:
            assert server.websocket is not None
            slow = await RawWebSocket.dial(server)
            kept = await RawWebSocket.open(server)
            await until(lambda: server.websocket is not None and len(server.websocket.waiting) == 1)
            assert await kept.flush() == b""
            slow.writer.close()

    run(test())


def test_unfinished_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_listener, "WAITING_MAX", 2)

    async def test() -> None:
        async with serving() as server:
            door = server.websocket
            assert door is not None
            first, _second = [await RawWebSocket.dial(server) for _ in range(2)]
            await until(lambda: len(door.waiting) == 2)
            third = await RawWebSocket.dial(server)
            assert await third.end() == b""
            first.writer.write(REQUEST + b"\r\n")
            assert (await first.head()).startswith(b"HTTP/1.1 101 ")
            assert await (await RawWebSocket.open(server)).flush() == b""

    run(test())


@pytest.mark.parametrize(
    ("wire", "status", "reason"),
    [
        (b"\x82\x06PING\r\n", 1002, "mask bit missing"),
        (masked(b"x", 0xC2), 1002, "compressed frame without negotiated permessage-deflate"),
        (masked(b"x", 0x80), 1002, "invalid continuation frame"),
        (masked(b"HUHU\r\n"), 1002, "Protocol Violation"),
        (masked(b"PUB a 2000\r\n"), 1009, "Maximum Message Payload Exceeded"),
        (masked(b"PUB " + b"a" * 5000), 1008, "Maximum Control Line Exceeded"),
    ],
)
def test_bad_frames_close_only_that_client(wire: bytes, status: int, reason: str) -> None:
    async def test() -> None:
        async with serving(limits=Limits(max_payload=1000)) as server:
            other = await RawWebSocket.open(server)
            client = await RawWebSocket.open(server)
            assert await client.flush() == b""
            client.writer.write(wire)
            assert (await client.close_frame())[:2] == (status, reason)
            assert await other.flush() == b""
            assert len(server.connections) == 1

    run(test())


def test_a_decompression_bomb_closes_its_sender() -> None:
    async def test() -> None:
        options = replace(PLAIN, compression=True)
        async with serving(websocket=options) as server:
            offer = b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
            bomber = await RawWebSocket.dial(server)
            bomber.writer.write(REQUEST + offer)
            await bomber.head()
            await bomber.frame()
            stream = zlib.compressobj(wbits=-15)
            empty = b"PUB a 0\r\n\r\n" * 2_000_000
            packed = (stream.compress(empty) + stream.flush(zlib.Z_SYNC_FLUSH))[:-4]
            bomber.writer.write(masked(b'CONNECT {"verbose":false}\r\n') + masked(packed, 0xC2))
            status, reason, text = await bomber.close_frame()
            assert (status, reason) == (1009, "Maximum Message Payload Exceeded")
            assert b"-ERR 'Maximum Payload Violation'" in text
            assert server.connections.history[-1].in_msgs < 1_000_000

    run(test())


def test_frames_and_fragments_are_read_as_one_stream() -> None:
    async def test() -> None:
        async with serving() as server:
            client = await RawWebSocket.open(server, connect=None)
            client.send(b'CONNECT {"verbose":false}\r\nSU', 0x81)
            client.send(b"B a 1\r\nPUB a 1", 0x02)
            client.send(b"", 0x00)
            client.send(b"there?", PING)
            client.send(b"0\r\n01234567", 0x00)
            client.send(b"89\r\n", 0x80)
            found = [await client.frame(), await client.frame()]
            assert (PONG, b"there?") in found
            assert (BINARY, b"MSG a 1 10\r\n0123456789\r\n") in found

    run(test())


def test_pongs_to_a_client_that_does_not_read_are_not_queued() -> None:
    async def test() -> None:
        async with serving() as server:
            client = await RawWebSocket.open(server)
            client.send(b"SUB flood 1\r\n")
            await client.flush()
            (connection,) = server.connections.values()
            good = await plain(server)
            good.send(b"SUB done 1\r\n")
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            while connection.pending_bytes < 8 * 1024 * 1024:  # the socket takes no more
                good.send(b"PUB flood 1000000\r\n" + b"x" * 1_000_000 + b"\r\n")
                await good.flush()
            before = connection.pending_bytes
            for _ in range(20):
                client.send(b"p" * 125, PING)
                client.send(b"PUB done 0\r\n\r\n")
                await good.exactly(b"MSG done 1 0\r\n\r\n")
            assert connection.pending_bytes <= before
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            client.send(b"last", PING)
            pongs = 0
            while (found := await client.frame()) != (PONG, b"last"):
                pongs += found[0] == PONG
            assert pongs <= 1
            assert not connection.closed

    run(test())


def test_a_client_that_never_reads_is_a_slow_consumer() -> None:
    async def test() -> None:
        async with serving(limits=Limits(max_pending=4 * 1024 * 1024)) as server:
            sleeper = await RawWebSocket.open(server)
            sleeper.send(b"SUB flood 1\r\n")
            await sleeper.flush()
            sleeper.writer.transport.pause_reading()  # type: ignore[attr-defined]
            good = await plain(server)
            while len(server.connections) == 2:
                good.send(b"PUB flood 100000\r\n" + b"x" * 100_000 + b"\r\n")
                await good.flush()
            assert server.connections.history[-1].reason == "Slow Consumer (Pending Bytes)"
            assert server.connections.history[-1].kind == "websocket"

    run(test())


def test_frames_are_buffered_while_reading_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a turn ends within a chunk, the rest is carried out later, in order."""
    paused: list[int] = []
    receive = Connection.data_received

    def watched(connection: Connection, chunk: bytes) -> None:
        paused.append(connection.socket.reading_pauses)
        receive(connection, chunk)

    monkeypatch.setattr(Connection, "data_received", watched)
    monkeypatch.setattr(frames, "PIECE_SIZE", 10)
    monkeypatch.setattr(operations, "TURN_S", -1.0)
    monkeypatch.setattr(operations, "LOOK_MASK", 1)

    async def test() -> None:
        async with serving() as server:
            client = await RawWebSocket.open(server)
            numbers = range(200)
            one = b"".join(masked(b"SUB a %d\r\nUNSUB %d\r\n" % (n, n)) for n in numbers)
            client.writer.write(one + masked(b"PING\r\n"))
            while b"PONG" not in (await client.frame())[1]:
                pass
            assert len(paused) > len(numbers)
            assert set(paused) == {0}
            assert not next(iter(server.connections.values())).subs

    run(test())
