"""Requests that are answered without aiohttp, and those that are handed to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from broker.config.options import Http
from broker.monitor import plain_requests
from broker.monitor.plain_requests import HttpAnswer, OtherRequest, PlainRequest, plain_request
from broker.server.server import Server
from tests.monitor.documents.test_http import http_port
from tests.server.client.test_tls import TLS, client_context
from tests.support.server import PATIENCE, broker_of, run, running, until

PATHS = ("/varz", "/connz", "/healthz")
PROBE = b"GET /healthz?js-enabled-only=1 HTTP/1.1\r\nHost: x\r\nUser-Agent: kube-probe/1.30\r\n\r\n"


@pytest.mark.parametrize(
    ("received", "request_"),
    [
        (PROBE, PlainRequest("/healthz", {"js-enabled-only": "1"}, True, len(PROBE))),
        (PROBE + PROBE, PlainRequest("/healthz", {"js-enabled-only": "1"}, True, len(PROBE))),
        (
            b"GET /connz?subs=&a=%20b+c&a=2 HTTP/1.1\r\nHost:\r\nConnection: Close\r\n\r\n",
            PlainRequest("/connz", {"subs": "", "a": " b c"}, False, 68),
        ),
        (b"GET /varz HTTP/1.0\r\n\r\n", PlainRequest("/varz", {}, False, 22)),
        (
            b"GET /varz HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
            PlainRequest("/varz", {}, True, 50),
        ),
    ],
)
def test_plain_requests(received: bytes, request_: PlainRequest) -> None:
    assert plain_request(received, PATHS) == request_
    for size in range(request_.size):
        assert plain_request(received[:size], PATHS) is None


@pytest.mark.parametrize(
    "received",
    [
        b"X",
        b"POST /varz HTTP/1.1\r\n",
        b"GET http://x/varz HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /%76arz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /varz#a HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /varz HTTP/2.0\r\nHost: x\r\n\r\n",
        b"GET /varz  HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /varz HTTP/1.1\r\n\r\n",
        b"GET /varz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /varz HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        b"GET /varz HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n",
        b"GET /varz HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n",
        b"GET /varz HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        b"GET /varz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /varz HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n",
        b"GET /varz HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n",
        b"GET /varz?" + b"x" * plain_requests.HEAD_BYTES_MAX,
    ],
)
def test_other_requests_are_not_judged(received: bytes) -> None:
    with pytest.raises(OtherRequest):
        plain_request(received, PATHS)


class Asker:
    """A client that writes bytes and reads whole answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, server: Server, *, tls: bool = False) -> Asker:
        context = client_context() if tls else None
        host = "localhost" if tls else "127.0.0.1"
        return cls(*await asyncio.open_connection(host, http_port(server), ssl=context))

    async def ask(self, path: str, more: str = "") -> tuple[int, dict[str, str], bytes]:
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode())
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(PATIENCE):
            first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()[:-1]
            headers = dict(line.split(": ", 1) for line in lines)
            body = await self.reader.readexactly(int(headers["Content-Length"]))
        return int(first.split()[1]), headers, body

    async def ended(self) -> bool:
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True


def with_asker(
    work: Callable[[Server, Asker], Awaitable[None]], *, base_path: str = "", tls: bool = False
) -> None:
    async def test() -> None:
        http = Http("127.0.0.1", -1, base_path=base_path, tls=tls)
        async with running(http=http, tls=TLS if tls else None) as server:
            asker = await Asker.open(server, tls=tls)
            try:
                await work(server, asker)
            finally:
                asker.writer.close()

    run(test())


def test_documents_are_answered_without_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    """In any chunks, one after the other, and behind each other."""

    async def work(server: Server, asker: Asker) -> None:
        monitor = broker_of(server).monitor.http
        assert monitor is not None
        monkeypatch.setattr(monitor._full, "connection", None)  # a call would fail
        for at in range(len(PROBE)):
            asker.writer.write(PROBE[at : at + 1])
            await asyncio.sleep(0)
        code, headers, body = await asker.answer()
        assert (code, body) == (200, b'{"status":"ok"}')
        assert headers["Content-Type"] == "application/json"
        assert (await asker.ask("/connz?sort=x"))[0] == 400
        asker.writer.write(
            b"".join(PROBE.replace(b"healthz", path) for path in (b"varz", b"connz"))
        )
        assert b'"server_id"' in (await asker.answer())[2]
        assert b'"num_connections"' in (await asker.answer())[2]
        _, _, metrics = await asker.ask("/metrics", "Connection: close\r\n")
        assert b"jetraft_connections 0\n" in metrics
        assert await asker.ended()

    with_asker(work)


def test_both_ways_give_the_same_answers() -> None:
    async def work(server: Server, asker: Asker) -> None:
        for path in ("/healthz", "/connz?sort=x", "/subsz?subs=1", "/connz?limit=1&limit=2"):
            plain, full = await asker.ask(f"/nats{path}"), await Asker.open(server)
            other = await full.ask(f"/nats{path}", "Upgrade: none\r\n")
            full.writer.close()
            assert "Server" in other[1]
            for headers in (plain[1], other[1]):
                assert headers.pop("Date")
                headers.pop("Server", None)
            known = {b'"now"': 1, b'"num_connections"': 1}
            lines = [
                [line for line in body.splitlines() if not any(key in line for key in known)]
                for body in (plain[2], other[2])
            ]
            assert (plain[0], plain[1], lines[0]) == (other[0], other[1], lines[1])

    with_asker(work, base_path="/nats/")


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_a_connection_that_asks_for_the_console_goes_on_with_aiohttp(tls: bool) -> None:
    async def work(server: Server, asker: Asker) -> None:
        assert "Server" not in (await asker.ask("/varz"))[1]
        assert b"console/main.js" in (await asker.ask("/"))[2]
        code, headers, _ = await asker.ask("/varz")
        assert code == 200
        assert "aiohttp" in headers["Server"]
        assert (await asker.ask("/nothing"))[0] == 404

    with_asker(work, tls=tls)


def test_who_asks_and_does_not_read_is_not_read_either() -> None:
    """Otherwise a few megabytes of requests would become gigabytes of answers."""

    async def work(server: Server, _: Asker) -> None:
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        small.connect(("127.0.0.1", http_port(server)))
        small.setblocking(False)
        monitor = broker_of(server).monitor.http
        assert monitor is not None
        door = monitor._door
        await until(lambda: len(door) == 2)
        *_, connection = door._open
        assert isinstance(connection, plain_requests.PlainConnection)
        asked, loop = PROBE.replace(b"healthz", b"varz") * 50_000, asyncio.get_running_loop()
        sending = loop.create_task(loop.sock_sendall(small, asked))
        await until(lambda: not (connection._reading or connection._writable.is_set()))
        assert connection.transport is not None
        assert connection.transport.get_write_buffer_size() < 256 << 10
        assert len(connection._received) < 512 << 10
        sending.cancel()
        await asyncio.wait([sending])
        small.close()

    with_asker(work)


def test_a_connection_without_a_next_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_requests, "IDLE_SECONDS", 0.05)

    async def work(_: Server, asker: Asker) -> None:
        assert (await asker.ask("/varz"))[0] == 200
        asker.writer.write(PROBE[:-2])
        assert await asker.ended()

    with_asker(work)


def test_a_document_that_fails_is_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    async def work(server: Server, asker: Asker) -> None:
        async def fail(_: object) -> HttpAnswer:
            raise ZeroDivisionError

        monitor = broker_of(server).monitor.http
        assert monitor is not None
        answers = monitor._shared.answers
        assert isinstance(answers, dict)
        answers["/varz"] = fail
        assert (await asker.ask("/varz"))[0] == 500
        assert await asker.ended()

    with_asker(work)
    (logged,) = [record for record in caplog.records if "failed" in record.msg]
    assert logged.exc_info is not None
