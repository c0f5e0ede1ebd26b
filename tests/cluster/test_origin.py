"""The client a mirror reads its origin with, against a server that follows a script."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.cluster import origin as module
from broker.cluster.origin import Origin, OriginAddress, OriginLost, OriginRefused
from tests.cluster.fakes import run, turns

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
    """A server that plays the script to each connection; what it raises fails the test."""
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
async def connected(address: OriginAddress) -> AsyncIterator[Origin]:
    origin = await Origin.connect(address)
    try:
        yield origin
    finally:
        origin.close()
        await turns()


@asynccontextmanager
async def consuming(script: Script, **wanted: Any) -> AsyncIterator[Origin]:
    """A client that has its consumer, on a server that goes on with the script."""

    async def whole(peer: Peer) -> None:
        await peer.serve()
        await script(peer)

    async with scripted(whole) as address, connected(address) as origin:
        await origin.consume("S", **{"start": 1, **wanted})
        yield origin


async def until_closed(peer: Peer) -> None:
    await peer.reader.read()


# -- connecting ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("login", "fields", "expected"),
    [
        ("", {}, {}),
        ("u:p@", {}, {"user": "u", "pass": "p"}),
        ("u%40x:p%3Aw@", {}, {"user": "u@x", "pass": "p:w"}),
        ("secret@", {}, {"auth_token": "secret"}),
        ("u:p@", {"user": "v", "password": "q"}, {"user": "v", "pass": "q"}),
        ("u:p@", {"token": "t"}, {"auth_token": "t"}),
    ],
)
def test_credentials(login: str, fields: dict[str, Any], expected: dict[str, str]) -> None:
    seen: dict[str, Any] = {}

    async def script(peer: Peer) -> None:
        await peer.greet()
        seen.update(peer.connect)

    async def test() -> None:
        async with scripted(script) as address:
            url = address.urls[0].replace("//", f"//{login}")
            async with connected(OriginAddress((url,), **fields)):
                pass
        told = {key: seen[key] for key in ("user", "pass", "auth_token") if key in seen}
        assert told == expected
        assert seen["headers"]
        assert seen["no_responders"]
        assert not seen["verbose"]

    run(test())


def test_operations_during_the_greeting() -> None:
    answered: list[bytes] = []

    async def script(peer: Peer) -> None:
        peer.send(INFO)
        await peer.line()
        await peer.line()
        peer.send(b"+OK\r\n" + INFO + b"PING\r\n")
        answered.append(await peer.line())
        peer.send(b"PONG\r\n")
        await until_closed(peer)

    async def test() -> None:
        async with scripted(script) as address, connected(address):
            assert answered == [b"PONG"]

    run(test())


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"", "closed the connection"),
        (b"INFO {\r\n", "truncated"),
        (b"INFO []\r\n", "Expected `object`"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no NATS server"),
        (b"\xff\xfe\r\n", "no NATS server"),
        (INFO + b"-ERR 'Authorization Violation'\r\n", "Authorization Violation"),
        (b"x" * (module.READ_LIMIT * 2 + 2), "without end"),
    ],
    ids=["nothing", "cut JSON", "other JSON", "http", "bytes", "refused", "endless"],
)
def test_whatever_greets_us_is_lost_with_a_reason(greeting: bytes, reason: str) -> None:
    async def script(peer: Peer) -> None:
        peer.send(greeting)
        if greeting:
            await until_closed(peer)

    async def test() -> None:
        async with scripted(script) as address:
            with pytest.raises(OriginLost, match=reason) as lost:
                await Origin.connect(address)
            assert str(lost.value).startswith("127.0.0.1:")

    run(test())


def test_addresses_are_tried_in_turn_and_passwords_not_shown() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()

    async def test() -> None:
        async with scripted(script) as address:
            urls = ("nats://u:secret@127.0.0.1:1", "nats://127.0.0.1:99999", *address.urls)
            async with connected(OriginAddress(urls)):
                pass
            with pytest.raises(OriginLost, match=r"^127.0.0.1:1: ") as lost:
                await Origin.connect(OriginAddress(urls[:1]))
            assert "secret" not in str(lost.value)
        with pytest.raises(OriginLost, match="no url"):
            await Origin.connect(OriginAddress(()))

    run(test())


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_WITHIN_S", 0.01)

    async def test() -> None:
        async with scripted(until_closed) as address:
            with pytest.raises(OriginLost, match="TimeoutError"):
                await Origin.connect(address)

    run(test())


# -- the consumer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["", "s.>"])
def test_the_consumer_that_is_asked_for(wanted: str) -> None:
    asked: list[tuple[bytes, dict[str, Any]]] = []

    async def script(peer: Peer) -> None:
        await peer.greet()
        asked.append(await peer.asked())
        peer.answer()
        await until_closed(peer)

    async def test() -> None:
        async with scripted(script) as address:
            hub = OriginAddress(address.urls, api="$JS.hub.API")
            async with connected(hub) as origin:
                await origin.consume("S", start=17, filters=(wanted,) if wanted else ())
        [(subject, body)] = asked
        assert subject == b"$JS.hub.API.CONSUMER.CREATE.S"
        assert body["stream_name"] == "S"
        config = body["config"]
        assert (config["deliver_policy"], config["opt_start_seq"]) == ("by_start_sequence", 17)
        assert config["ack_policy"] == "none"
        assert config.get("filter_subject", "") == wanted
        assert config["idle_heartbeat"] == 2_000_000_000
        assert config["flow_control"]

    run(test())


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        (b'{"error":{"code":404,"description":"stream not found"}}', OriginRefused, "stream not"),
        (b'{"error":{}}', OriginRefused, "refused"),
        (b"not json", OriginLost, "answered"),
        (b"[1]", OriginLost, "answered"),
        (b'{"error":"what"}', OriginLost, "answered"),
    ],
)
def test_refusals_and_nonsense(answer: bytes, kind: type[Exception], reason: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.asked()
        peer.answer(answer)

    async def test() -> None:
        async with scripted(script) as address, connected(address) as origin:
            with pytest.raises(kind, match=reason):
                await origin.consume("S", start=1)

    run(test())


def test_nobody_answers_the_api() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.asked()
        peer.send(b"HMSG %b.r 2 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % peer.inbox)

    async def test() -> None:
        async with scripted(script) as address, connected(address) as origin:
            with pytest.raises(OriginRefused, match="503"):
                await origin.consume("S", start=1)

    run(test())


def test_messages_may_come_before_the_answer() -> None:
    """The order of an answer and of the first deliveries is nobody's promise."""

    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.asked()
        for i in (1, 2):
            peer.send(peer.stored(i, delivery=i))
        peer.send(peer.status(HEARTBEAT % 2))
        peer.answer()
        peer.send(peer.stored(3, delivery=3))
        await until_closed(peer)

    async def test() -> None:
        async with scripted(script) as address, connected(address) as origin:
            await origin.consume("S", start=1)
            assert origin.buffered()
            found = [(await origin.next()).seq for _ in range(2)]
            assert not origin.buffered()  # a heartbeat is next
            assert [*found, (await origin.next()).seq] == [1, 2, 3]

    run(test())


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_messages_are_exact_however_they_are_cut(seed: int) -> None:
    headers = b"NATS/1.0\r\nX-a:  two  \r\nx-A: \r\nX-a: again\r\n\r\n"
    bodies = [b"", b"\r\n", b"MSG a 1 0\r\n\r\n", bytes(range(256)), b"p" * 70_000]

    async def script(peer: Peer) -> None:
        dice = random.Random(seed)
        data = b"".join(
            peer.stored(10 * i, delivery=i, data=body, headers=headers if i % 2 else b"")
            + (b"PING\r\n" if i == 2 else b"")
            for i, body in enumerate(bodies, 1)
        )
        while data:
            size = dice.choice((1, 2, 3, 50, 4000, 40_000))
            peer.send(data[:size])
            await peer.writer.drain()
            await turns(dice.randrange(3))
            data = data[size:]
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            for i, body in enumerate(bodies, 1):
                message = await origin.next()
                assert message.data == body
                assert message.headers == (headers if i % 2 else b"")
                assert (message.subject, message.seq) == (b"s.%d" % (10 * i), 10 * i)
                assert message.time_ns == TIME + 10 * i  # to the nanosecond

    run(test())


@pytest.mark.parametrize(
    "reply",
    [
        b"$JS.ACK.S.c.1.5.1.%d.9",
        b"$JS.ACK._.ACCHASH.S.c.1.5.1.%d.9",
        b"$JS.ACK.hub.ACCHASH.S.c.1.5.1.%d.9.random",
    ],
)
def test_both_forms_of_ack_replies_are_read(reply: bytes) -> None:
    async def script(peer: Peer) -> None:
        peer.send(b"MSG s 1 %b 1\r\nx\r\n" % (reply % TIME))
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            message = await origin.next()
            assert (message.seq, message.time_ns, message.pending) == (5, TIME, 9)

    run(test())


def test_flow_control_and_heartbeats_are_answered_on_the_way() -> None:
    heard: list[bytes] = []

    async def script(peer: Peer) -> None:
        peer.send(peer.stored(1, delivery=1))
        peer.send(peer.status(b"NATS/1.0 100 FlowControl Request\r\n\r\n", b"$JS.FC.S.c.x"))
        stalled = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\n"
        peer.send(peer.status(stalled + b"Nats-Consumer-Stalled: $JS.FC.S.c.y\r\n\r\n"))
        peer.send(peer.status(HEARTBEAT % 1) + b"PING\r\n")
        for _ in range(5):
            heard.append(await peer.line())
        peer.send(peer.stored(2, delivery=2))
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            assert [(await origin.next()).seq for _ in range(2)] == [1, 2]
        assert heard == [b"PUB $JS.FC.S.c.x 0", b"", b"PUB $JS.FC.S.c.y 0", b"", b"PONG"]

    run(test())


def test_a_batch_does_not_wait_behind_a_heartbeat() -> None:
    async def script(peer: Peer) -> None:
        whole = b"".join(peer.stored(i, delivery=i) for i in (1, 2))
        half = peer.stored(3, delivery=3, data=b"p" * 100)
        peer.send(whole + peer.status(HEARTBEAT % 2) + half[:60])
        assert await peer.line() == b"PING"
        peer.send(half[60:])
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            await origin.next()
            assert origin.buffered()
            await origin.next()
            assert not origin.buffered()  # nothing but a heartbeat and half a message is here
            origin.writer.write(b"PING\r\n")
            assert (await origin.next()).seq == 3
            assert not origin.buffered()

    run(test())


def test_half_a_message_is_not_waited_for() -> None:
    async def script(peer: Peer) -> None:
        half = peer.stored(2, delivery=2, data=b"p" * 100)
        peer.send(peer.stored(1, delivery=1) + half[:60])
        assert await peer.line() == b"PING"
        peer.send(half[60:])
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            await origin.next()
            while len(origin.reader._buffer) < 60:  # type: ignore[attr-defined]
                await turns()
            assert not origin.buffered()
            origin.writer.write(b"PING\r\n")
            assert (await origin.next()).seq == 2

    run(test())


def test_a_message_longer_than_it_says_is_not_taken() -> None:
    async def script(peer: Peer) -> None:
        peer.send(peer.stored(1, delivery=1, data=b"xyz").replace(b" 3\r\n", b" 2\r\n"))
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            with pytest.raises(OriginLost, match="longer than"):
                await origin.next()

    run(test())


@pytest.mark.parametrize("delivery", [1, 3])
def test_a_gap_in_deliveries_is_a_loss(delivery: int) -> None:
    async def script(peer: Peer) -> None:
        peer.send(peer.stored(1, delivery=1) + peer.stored(2, delivery=delivery))
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            await origin.next()
            with pytest.raises(OriginLost, match=f"expected delivery 2, got {delivery}"):
                await origin.next()

    run(test())


def test_a_heartbeat_that_tells_of_more_is_a_loss() -> None:
    async def script(peer: Peer) -> None:
        peer.send(peer.stored(1, delivery=1) + peer.status(HEARTBEAT % 2))
        await until_closed(peer)

    async def test() -> None:
        async with consuming(script) as origin:
            await origin.next()
            with pytest.raises(OriginLost, match="delivered up to 2, received 1"):
                await origin.next()

    run(test())


def test_silence_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.005)

    async def test() -> None:
        async with consuming(until_closed) as origin:
            with pytest.raises(TimeoutError):
                await origin.next()

    run(test())


@pytest.mark.parametrize(
    "sent",
    [
        b"MSG\r\n",
        b"MSG s 1 x\r\n",
        b"MSG s 1 -5\r\n",
        b"MSG s 1 r r 0\r\n\r\n",
        b"MSG s 1 99999999999999\r\n",
        b"MSG s 1 1\r\nxyz\r\n",
        b"HMSG s 1 5\r\n",
        b"HMSG s 1 9 5\r\n",
        b"HMSG s 1 -1 5\r\n12345\r\n",
        b"MSG s 1 $JS.ACK.S.c.1.x.1.1.0 0\r\n\r\n",
        b"MSG s 1 $JS.ACK.S 0\r\n\r\n",
        b"HMSG s 1 38 38\r\nNATS/1.0 100\r\nNats-Last-Consumer: x\r\n\r\n",
        b"-ERR 'Slow Consumer'\r\n",
        b"MSG s 1 10\r\nhalf",
        b"",
    ],
)
def test_whatever_the_origin_sends_it_is_lost_and_nothing_worse(sent: bytes) -> None:
    async def script(peer: Peer) -> None:
        peer.send(sent)

    async def test() -> None:
        async with consuming(script) as origin:
            await turns()
            origin.buffered()  # judges nothing, raises nothing
            with pytest.raises(OriginLost):
                await origin.next()

    run(test())
