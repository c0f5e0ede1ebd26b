"""The tunnel through an HTTP proxy: what is asked, and what is refused."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from broker.config.options import LeafProxy
from broker.server.leaf.http_tunnel import ANSWER_MAX, tunnel
from tests.support.http_proxy import HttpProxy
from tests.support.server import run


def test_a_tunnel_carries_bytes_both_ways() -> None:
    async def test() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(5))
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, HttpProxy(login="u:p").running() as proxy:
            options = LeafProxy(f"http://127.0.0.1:{proxy.port}", "u", "p")
            with closing(await tunnel(options, "127.0.0.1", port)) as connection:
                reader, writer = await asyncio.open_connection(sock=connection)
                writer.write(b"hello")
                assert await reader.read() == b"hello"
                writer.close()
            assert proxy.asked == [f"CONNECT 127.0.0.1:{port} HTTP/1.1"]

    run(test())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "407 Proxy Authentication Required"),
        (b"HTTP/1.1 503 Sorry\r\n\r\n", "503 Sorry"),
        (b"SSH-2.0-x\r\n\r\n", "CONNECT failed: SSH"),
        (b"HTTP/1.1 200 OK\r\n\r\nmore", "more than the answer"),
        (b"HTTP/1.1 200 OK\r\n", "closed the connection"),
        (b"HTTP/1.1 200 " + b"x" * ANSWER_MAX, "too long"),
    ],
    ids=lambda one: str(one)[:30],
)
def test_a_proxy_that_refuses_or_talks_nonsense(answer: bytes, why: str) -> None:
    async def test() -> None:
        async with HttpProxy(login="u:p", answer=answer).running() as proxy:
            options = LeafProxy(f"http://127.0.0.1:{proxy.port}", "u", "wrong")
            with pytest.raises(ConnectionError, match=why):
                await tunnel(options, "127.0.0.1", 1)

    run(test())


def test_a_proxy_that_is_not_there() -> None:
    async def test() -> None:
        async with HttpProxy().running() as proxy:
            port = proxy.port
        with pytest.raises(ConnectionError, match=r"proxy 127\.0\.0\.1: "):
            await tunnel(LeafProxy(f"http://127.0.0.1:{port}"), "h", 1)

    run(test())
