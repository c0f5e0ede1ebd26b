"""Reads of stored messages are cut into time slices, so that other clients are not delayed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.cluster.api import direct_get
from broker.cluster.api import message_gets as gets
from broker.cluster.replica import leadership as leading
from broker.config.options import JetStreamOptions
from broker.server.client import operations
from broker.server.client.client_sink import ClientSink
from broker.server.routing import fair_queue, router
from broker.store.block.codec import BlockDamaged
from broker.subjects import Steps
from tests.server.routing.test_fair_queue import LoopTurns
from tests.support.server import RawClient, run, running

COUNT = 20
ANSWERS = (b"MSG in.", b"HMSG in.", b"MSG k.")


@asynccontextmanager
async def asker(directory: Path) -> AsyncIterator[RawClient]:
    """A client of a server with one stream, S, of messages on k.0, k.1 and so on."""
    store = JetStreamOptions(store_dir=str(directory))
    async with running(jetstream=store) as server:
        client = await RawClient.open(server)
        client.send(b"SUB in.* 1\r\n")
        config = b'{"name":"S","subjects":["k.*"],"allow_direct":true}'
        while b'"error"' in await asked(client, [(b"$JS.API.STREAM.CREATE.S", config)]):
            await asyncio.sleep(0.01)  # the cluster of one is not formed yet
        await asked(client, [(b"k.%d" % i, b"data") for i in range(COUNT)])
        try:
            yield client
        finally:
            client.close()


async def asked(client: RawClient, requests: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Send all requests at once; the lines received until each has its answer."""
    for i, (subject, body) in enumerate(requests):
        client.send(b"PUB %b in.%d %d\r\n%b\r\n" % (subject, i, len(body), body))
    lines: list[bytes] = []
    while sum(line.startswith(ANSWERS) for line in lines) < len(requests):
        lines.append(await client.line())
    return b"".join(lines) + await client.flush()


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (router, operations, fair_queue, leading):
        monkeypatch.setattr(module, "TURN_S", -1.0)
    monkeypatch.setattr(gets, "LOOK_BYTES", 0)


def watched(monkeypatch: pytest.MonkeyPatch, turns: LoopTurns) -> list[int]:
    """The turns of the loop in which something is delivered to a client."""
    seen: list[int] = []

    def watch(name: str) -> None:
        deliver = getattr(ClientSink, name)

        def noted(self: ClientSink, *given: Any, **named: Any) -> bool:
            seen.append(turns.count)
            delivered: bool = deliver(self, *given, **named)
            return delivered

        monkeypatch.setattr(ClientSink, name, noted)

    watch("deliver_encoded")
    watch("deliver_answers")
    return seen


REQUESTS = {
    "as JSON": [(b"$JS.API.STREAM.MSG.GET.S", b'{"seq":%d}' % (i + 1)) for i in range(COUNT)],
    "direct": [(b"$JS.API.DIRECT.GET.S", b'{"seq":%d}' % (i + 1)) for i in range(COUNT)],
    "of keys": [(b"$JS.API.DIRECT.GET.S.k.%d" % i, b"") for i in range(COUNT)],
}


@pytest.mark.parametrize("overheard", [False, True])
@pytest.mark.parametrize("form", REQUESTS)
def test_one_read_per_turn_of_the_loop_when_each_takes_a_slice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str, *, overheard: bool
) -> None:
    async def test() -> None:
        async with asker(tmp_path) as client:
            if overheard:
                client.send(b"SUB $JS.API.> 2\r\n")
            await client.flush()
            expected = await asked(client, REQUESTS[form])
            impatient(monkeypatch)
            with LoopTurns() as turns:
                seen = watched(monkeypatch, turns)
                got = await asked(client, REQUESTS[form])
            assert got == expected
            assert len(set(seen)) >= COUNT - 1  # the first answer may share a turn with the second

    run(test())


def test_a_damaged_message_of_the_only_replica_is_answered_with_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def damaged(*_: object) -> Steps[None]:
        yield
        raise BlockDamaged("simulated damage")

    async def test() -> None:
        async with asker(tmp_path) as client:
            monkeypatch.setattr(direct_get, "find_message", damaged)
            answer = await asked(client, [(b"$JS.API.STREAM.MSG.GET.S", b'{"seq":1}')])
            assert b'"err_code":10077,"description":"damaged block: simulated damage"' in answer
            assert await client.flush() == b""  # the connection stays open
            assert "Traceback" not in caplog.text

    run(test())


def test_consumers_of_a_stream_take_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def test() -> None:
        async with asker(tmp_path) as client:
            for i in range(COUNT):
                body = b'{"stream_name":"S","config":{"name":"c%d","ack_policy":"none"}}' % i
                assert b'"error"' not in await asked(
                    client, [(b"$JS.API.CONSUMER.CREATE.S.c%d" % i, body)]
                )
            pulls = [(b"$JS.API.CONSUMER.MSG.NEXT.S.c%d" % i, b"1") for i in range(COUNT)]
            impatient(monkeypatch)
            with LoopTurns() as turns:
                seen = watched(monkeypatch, turns)
                got = await asked(client, pulls)
            assert got.count(b"MSG k.0 1 $JS.ACK.S.") == COUNT
            assert len(seen) == COUNT
            assert len(set(seen)) >= COUNT - 1

    run(test())
