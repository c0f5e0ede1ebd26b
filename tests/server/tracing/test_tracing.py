"""Tracing where nats-server is no reference: turns, silent streams, accounts of other nodes."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import msgspec
import pytest

from broker.config.options import AccountOptions, Export, Import
from broker.server.server import Server
from broker.server.tracing import message_trace
from broker.server.tracing import storage_trace as traced_storing
from broker.subjects import PublishingConnection, SinkKind, Subscription
from broker.wire import PubRun
from tests.server.client.test_turns import impatient
from tests.server.routing.test_imports import serving
from tests.support.server import RawClient, run, running

DEST = b"Nats-Trace-Dest: t\r\n"


def hpub(subject: bytes, lines: bytes, payload: bytes = b"", reply: bytes = b"") -> bytes:
    block = b"NATS/1.0\r\n" + lines + b"\r\n"
    sizes = b"%d %d" % (len(block), len(block) + len(payload))
    return b"HPUB %b %b %b\r\n%b%b\r\n" % (subject, reply, sizes, block, payload)


async def next_event(tracer: RawClient, *, packed: bool = False) -> dict[str, Any]:
    """The next message of the client, decoded as a trace."""
    while not (line := await tracer.line()).startswith((b"MSG t ", b"HMSG t ")):
        assert line, "closed"
    words = line.split()
    body = (await tracer.reader.readexactly(int(words[-1]) + 2))[:-2]
    if packed:
        block, body = body[: int(words[-2])], body[int(words[-2]) :]
        assert b"Content-Encoding: gzip\r\n" in block
        body = gzip.decompress(body)
    found: dict[str, Any] = msgspec.json.decode(body)
    return found


class Taker:
    """A sink that records what it is given and does not answer."""

    peer = 7
    stream = b"S"

    def __init__(self, kind: SinkKind) -> None:
        self.kind = kind
        self.taken: list[tuple[bytes, bytes, bytes, bytes]] = []

    def deliver(self, sub: Subscription, *message: bytes) -> bool:
        self.taken.append(message)  # type: ignore[arg-type]
        return True

    def deliver_run(
        self,
        sub: Subscription,
        run: PubRun,
        start: int,
        stop: int,
        publisher: PublishingConnection | None,
    ) -> bool:
        self.taken.extend(run.message(row) for row in range(start, stop))
        return True

    def answers(self, reply: bytes) -> bool:
        return True

    def stored_as(self, subject: bytes) -> tuple[bytes, bool]:
        return subject, False


def attach(server: Server, account: str, subject: bytes, kind: SinkKind) -> Taker:
    taker = Taker(kind)
    there = server.account(account)
    there.subs.insert(Subscription(taker, there, subject))
    return taker


def test_traced_messages_keep_their_order_across_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        impatient(monkeypatch)
        async with running() as server:
            tracer = await RawClient.open(server)
            tracer.send(b"SUB t 1\r\n")
            await tracer.flush()
            client = await RawClient.open(server)
            subjects = [b"a.%d" % (number % 5) for number in range(60)]
            messages = [
                hpub(subject, DEST if number % 7 == 3 else b"A: b\r\n", b"%02d" % number)
                for number, subject in enumerate(subjects)
            ]
            client.send(b"SUB a.* 1\r\nSUB a.> 2\r\n" + b"".join(messages))
            got = await client.flush()
            numbers = [line[:2] for line in got.split(b"\r\n") if line[:2].isdigit()]
            assert sorted(numbers) == sorted([b"%02d" % number for number in range(60)] * 2)
            assert list(dict.fromkeys(numbers)) == [b"%02d" % number for number in range(60)]
            seen = [(await next_event(tracer))["events"][0]["subj"] for _ in range(9)][:2]
            assert seen == [subjects[3].decode(), subjects[10].decode()]
            assert server.connections.traffic().in_msgs == 60
            client.close()
            tracer.close()

    run(test())


def test_a_report_is_compressed_when_accepted() -> None:
    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server)
            client.send(b"SUB t 1\r\n" + hpub(b"a", DEST + b"Accept-Encoding: gzip\r\n"))
            found = await next_event(client, packed=True)
            assert found["request"]["header"]["Accept-Encoding"] == ["gzip"]
            client.close()

    run(test())


def test_waiting_for_a_stream_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        monkeypatch.setattr(traced_storing, "WAIT_S", 0.01)
        async with running() as server:
            stream = attach(server, "$G", b"a", SinkKind.STREAM)
            client = await RawClient.open(server)
            client.send(b"SUB t 1\r\n" + hpub(b"a", DEST, b"x", reply=b"back"))
            _, told = (await next_event(client))["events"]
            assert (told["type"], told["error"]) == ("js", "no answer from the stream")
            assert b"Nats-Trace-Dest: trace disabled\r\n" in stream.taken[0][2]
            # The answer comes too late for the trace, and is not forwarded.
            answer = server.router.publish(server.account("$G"), stream.taken[0][1], b"", b"", b"")
            assert answer == 0
            client.close()

    run(test())


def test_a_client_cannot_answer_in_place_of_a_stream() -> None:
    async def test() -> None:
        async with running() as server:
            stream = attach(server, "$G", b"a", SinkKind.STREAM)
            client = await RawClient.open(server)
            client.send(b"SUB t 1\r\nSUB back 2\r\n" + hpub(b"a", DEST, b"x", reply=b"back"))
            await client.flush()
            answer_to = stream.taken[0][1]
            forged = b'{"stream":"S","seq":9}'
            client.send(b"PUB %b %d\r\n%b\r\n" % (answer_to, len(forged), forged))
            assert await client.flush() == b""
            body = b'{"stream":"S","seq":1}'
            server.router.publish(server.account("$G"), answer_to, b"", b"", body)
            await client.exactly(b"MSG back 2 %d\r\n%b\r\n" % (len(body), body))
            assert (await next_event(client))["events"][1]["subject"] == "a"
            client.close()

    run(test())


@pytest.mark.parametrize("only", [False, True])
def test_a_trace_ends_at_another_node_in_another_account(*, only: bool) -> None:
    async def test() -> None:
        accounts = (
            AccountOptions("A", exports=(Export(b"s"),)),
            AccountOptions("B", imports=(Import("A", b"s", b"s", allow_trace=True),)),
        )
        async with serving(*accounts) as server:
            node = attach(server.server, "B", b"s", SinkKind.ROUTE)
            client = await server.client("a")
            lines = DEST + (b"Nats-Trace-Only: on\r\n" if only else b"")
            client.send(b"SUB t 1\r\n" + hpub(b"s", lines, b"x"))
            _, exported, sent = (await next_event(client))["events"]
            assert (exported["type"], sent["type"], sent["kind"]) == ("se", "eg", 1)
            if only:
                assert sent["error"] == message_trace.NOT_SENT_THERE
                assert node.taken == []
            else:
                assert sent["error"] == message_trace.NOT_TRACED_THERE
                assert b"trace disabled" in node.taken[0][2]

    run(test())


def test_messages_that_are_not_sampled_are_not_traced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent = b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"

    async def test() -> None:
        async with serving(AccountOptions("A", trace_dest=b"t", trace_sampling=40)) as server:
            client = await server.client("a")
            client.send(b"SUB a 1\r\nSUB t 2\r\n")
            for drawn, traced in ((39, True), (40, False)):
                monkeypatch.setattr(message_trace, "randrange", lambda _stop, drawn=drawn: drawn)
                client.send(hpub(b"a", parent))
                got = await client.flush()
                assert (b"MSG t 2 " in got) is traced
                assert (b"Nats-Trace-Dest: trace disabled" in got) is not traced

    run(test())


def test_the_loop_runs_between_traced_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of them was one turn: with 50 subscribers it took four seconds."""

    async def test() -> None:
        async with running() as server:
            client = await RawClient.open(server)
            client.send(b"".join(b"SUB x %d\r\n" % at for at in range(3)))
            await client.flush()
            impatient(monkeypatch)
            turns = 0

            def turn() -> None:
                nonlocal turns
                turns += 1
                asyncio.get_running_loop().call_soon(turn)

            turn()
            client.send(hpub(b"x", DEST) * 100)
            await client.flush()
            [found] = server.connections.values()
            assert found.client.out_msgs == 300
            assert turns >= 100
            client.close()

    run(test())
