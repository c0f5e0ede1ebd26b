"""WebSocket clients on a running server: the official client, INFO, monitoring, credentials."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
from msgspec.structs import replace

from broker.config.options import (
    SECOND,
    Authorization,
    Http,
    LameDuck,
    TlsOptions,
    User,
)
from broker.server.routing import fair_queue
from broker.server.routing.fair_queue import FairQueue
from broker.server.server import Server
from broker.subjects import finish
from broker.wire.websocket import FrameReader
from tests.support.clients import open_client
from tests.support.server import EMPTY_CONNECT, PATIENCE, broker_of, run, until
from tests.support.websocket import (
    BINARY,
    CLOSE,
    PLAIN,
    REQUEST,
    RawWebSocket,
    plain,
    port,
    serving,
    url,
)

# nats-py calls aiohttp the old way
pytestmark = pytest.mark.filterwarnings("ignore:parameter 'timeout' of type:DeprecationWarning")

CERTS = Path(__file__).parents[2] / "support" / "certs"
TLS = TlsOptions(cert_file=str(CERTS / "server-cert.pem"), key_file=str(CERTS / "server-key.pem"))
DEFLATE = b"Sec-WebSocket-Extensions: permessage-deflate\r\n"


async def talk(server: Server, **settings: Any) -> None:
    """Both ways between a WebSocket client and a plain one."""
    client = await open_client(url(server), allow_reconnect=False, **settings)
    official = await open_client(f"nats://127.0.0.1:{server.port}", allow_reconnect=False)
    sub = await official.subscribe("up")
    await official.flush()
    await client.publish("up", b"over the web", headers={"a": "b"})
    message = await sub.next_msg(timeout=PATIENCE)
    assert (message.data, message.headers) == (b"over the web", {"a": "b"})
    sub = await client.subscribe("down")
    await client.flush()
    payload = b"x" * 900_000
    await official.publish("down", payload)
    assert (await sub.next_msg(timeout=PATIENCE)).data == payload
    await client.close()
    await official.close()


def test_the_official_client_publishes_and_subscribes() -> None:
    async def test() -> None:
        async with serving() as server:
            await talk(server)
            await until(lambda: not server.connections)
            assert {one.kind for one in server.connections.history} == {"nats", "websocket"}
            assert {one.reason for one in server.connections.history} == {"Client Closed"}

    run(test())


def test_the_official_client_over_tls() -> None:
    async def test() -> None:
        async with serving(websocket=replace(PLAIN, no_tls=False, tls=TLS)) as server:
            assert url(server).startswith("wss://")
            context = ssl.create_default_context(cafile=str(CERTS / "ca.pem"))
            await talk(server, tls=context)
            await until(lambda: len(server.connections.history) == 2)
            (web,) = (one for one in server.connections.history if one.kind == "websocket")
            assert web.tls is not None
            assert web.tls[0] == "1.3"

    run(test())


def test_the_official_client_when_compression_is_configured() -> None:
    async def test() -> None:
        async with serving(websocket=replace(PLAIN, compression=True)) as server:
            await talk(server)

    run(test())


def test_compression_both_ways() -> None:
    async def test() -> None:
        async with serving(websocket=replace(PLAIN, compression=True)) as server:
            other = await plain(server)
            client = await RawWebSocketDeflated.open(server, headers=DEFLATE, connect=None)
            stream = zlib.compressobj(wbits=-15)
            words = b'CONNECT {"verbose":false}\r\nSUB a 1\r\n'
            packed = stream.compress(words) + stream.flush(zlib.Z_SYNC_FLUSH)
            client.send(packed[:-4], 0xC2)
            assert await client.flush() == b""
            other.send(b"PUB a 1000\r\n" + b"y" * 1000 + b"\r\n")
            await other.flush()
            first, payload = await client.frame()
            assert first == 0xC2
            assert len(payload) < 200
            inflated = zlib.decompressobj(-15).decompress(payload + b"\0\0\xff\xff")
            assert inflated == b"MSG a 1 1000\r\n" + b"y" * 1000 + b"\r\n"

    run(test())


class RawWebSocketDeflated(RawWebSocket):
    async def frame(self) -> tuple[int, bytes]:
        first, payload = await super().frame()
        if first == 0xC2 and not self.info:  # INFO, which is long enough to be compressed
            return BINARY, zlib.decompressobj(-15).decompress(payload + b"\0\0\xff\xff")
        return first, payload


def test_a_browser_gets_small_frames() -> None:
    async def test() -> None:
        async with serving() as server:
            client = await RawWebSocket.open(server, headers=b"User-Agent: Mozilla/5.0\r\n")
            client.send(b"SUB a 1\r\nPUB a 10000\r\n" + b"z" * 10_000 + b"\r\n")
            sizes = []
            while sum(sizes) < 10_000:
                sizes.append(len((await client.frame())[1]))
            assert max(sizes) == 4096

    run(test())


def test_info_names_this_listener_and_its_peers() -> None:
    async def test() -> None:
        async with serving(http=Http("127.0.0.1", -1)) as server:
            client = await RawWebSocket.open(server)
            assert (client.info["host"], client.info["port"]) == ("127.0.0.1", port(server))
            assert not {"tls_required", "connect_urls", "ws_connect_urls"} & client.info.keys()
            await client.flush()
            server.set_cluster_urls(["h:1"], ["h:2"])
            _, line = await client.frame()
            while b'"connect_urls"' not in line:
                _, line = await client.frame()
            told = msgspec.json.decode(line[5:])
            assert told["connect_urls"] == [f"127.0.0.1:{port(server)}", "h:2"]
            other = await plain(server)
            assert other.info["connect_urls"] == [f"127.0.0.1:{server.port}", "h:1"]

    run(test())


def test_varz_connz_and_log_label() -> None:
    async def test() -> None:
        options = replace(PLAIN, compression=True, handshake_timeout_ns=3 * SECOND)
        async with serving(websocket=options) as server:
            await RawWebSocket.open(server, headers=b"X-Forwarded-For: 10.0.0.7\r\n")
            server.set_cluster_urls(["h:1"], ["h:2"])
            documents = broker_of(server).monitor.documents.by_name
            shown = finish(documents["varz"]({}))
            assert shown["websocket"] == {
                "host": "127.0.0.1",
                "port": port(server),
                "handshake_timeout": 3 * SECOND,
                "no_tls": True,
                "compression": True,
            }
            assert shown["ws_connect_urls"] == [f"127.0.0.1:{port(server)}", "h:2"]
            (one,) = finish(documents["connz"]({}))["connections"]
            assert (one["kind"], one["type"], one["ip"]) == ("Client", "websocket", "127.0.0.1")
            (connection,) = server.connections.values()
            assert connection.label.startswith("10.0.0.7/127.0.0.1:")
            assert f" - wid:{connection.cid}" in connection.label

    run(test())


def test_info_shows_tls_of_this_listener_only() -> None:
    async def test() -> None:
        async with serving(tls=TLS) as server:
            client = await RawWebSocket.open(server)
            assert "tls_required" not in client.info
            assert await client.flush() == b""

    run(test())


def test_cookies_fill_in_missing_credentials() -> None:
    async def test() -> None:
        users = (User("ann", "secret"),)
        options = replace(PLAIN, user_cookie="u", pass_cookie="p")
        async with serving(websocket=options, authorization=Authorization(users=users)) as server:
            client = await RawWebSocket.open(server, headers=b"Cookie: u=ann; p=secret\r\n")
            assert client.info["auth_required"] is True
            assert await client.flush() == b""
            client = await RawWebSocket.open(server, headers=b"Cookie: u=ann; p=wrong\r\n")
            status, reason, text = await client.close_frame()
            assert (status, reason) == (1008, "Authentication Failure")
            assert b"-ERR 'Authorization Violation'" in text
            client = await RawWebSocket.open(
                server,
                headers=b"Cookie: u=ann; p=wrong\r\n",
                connect=b'CONNECT {"verbose":false,"pass":"secret"}\r\n',
            )
            assert await client.flush() == b""

    run(test())


def test_no_auth_user_and_token_of_this_listener() -> None:
    async def test() -> None:
        users = (User("ann", "secret"), User("guest"))
        options = replace(PLAIN, no_auth_user="guest")
        async with serving(websocket=options, authorization=Authorization(users=users)) as server:
            assert await (await RawWebSocket.open(server)).flush() == b""
            other = await plain(server)
            assert b"Authorization Violation" in await other.end()
        async with serving(websocket=replace(PLAIN, token="t")) as server:
            assert await (await plain(server)).flush() == b""
            client = await RawWebSocket.open(server)
            assert client.info["auth_required"] is True
            assert (await client.close_frame())[0] == 1008
            connect = b'CONNECT {"verbose":false,"auth_token":"t"}\r\n'
            assert await (await RawWebSocket.open(server, connect=connect)).flush() == b""

    run(test())


def test_lame_duck_and_shutdown_tell_web_clients() -> None:
    async def test() -> None:
        quick = LameDuck(duration_ns=2 * SECOND // 100, grace_ns=SECOND // 100)
        async with serving(lame_duck=quick) as server:
            client = await RawWebSocket.open(server)
            await client.flush()
            leaving = asyncio.create_task(broker_of(server).enter_lame_duck())
            status, reason, text = await client.close_frame()
            assert b'"ldm":true' in text
            assert (status, reason) == (1001, "Server Shutdown")
            with pytest.raises(OSError, match="Connect"):
                await RawWebSocket.dial(server)
            await leaving

    run(test())


def test_a_close_is_answered_with_the_same_status() -> None:
    async def test() -> None:
        async with serving() as server:
            client = await RawWebSocket.open(server)
            other = await plain(server)
            other.send(b"SUB last 1\r\n")
            await other.flush()
            client.send(b"PUB last 2\r\nhi\r\n")
            client.send((4001).to_bytes(2, "big") + b"bye", CLOSE)
            assert await client.close_frame() == (4001, "bye", b"")
            assert await other.flush() == b"MSG last 1 2\r\nhi\r\n"
            assert server.connections.history[-1].reason == "Client Closed"

    run(test())


def test_users_may_be_bound_to_this_kind_of_connection() -> None:
    kinds = {"web": frozenset(["WEBSOCKET"]), "plain": frozenset(["STANDARD"])}
    users = tuple(User(name, "x", connection_types=kind) for name, kind in kinds.items())

    async def test() -> None:
        async with serving(authorization=Authorization(users=users)) as server:
            client = await open_client(url(server), user="web", password="x")
            await client.close()
            refused = nats.NATS()
            with pytest.raises(nats.errors.Error, match="Authorization Violation"):
                await refused.connect(
                    url(server), user="plain", password="x", allow_reconnect=False
                )
            await refused.close()

    run(test())


def without_direct_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece of work waits for a turn."""
    monkeypatch.setattr(fair_queue, "DIRECT_S", -1.0)
    monkeypatch.setattr(fair_queue, "ALONE_S", -1.0)


def test_a_flood_of_empty_frames_is_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    without_direct_work(monkeypatch)

    async def test() -> None:
        async with serving(websocket=PLAIN) as server:
            client = await RawWebSocket.open(server)
            await client.flush()
            waits, wait = [], server.turns.wait

            def counted(*work: Any) -> None:
                waits.append(work[1])
                wait(*work)

            monkeypatch.setattr(FairQueue, "wait", lambda _queue, *work: counted(*work))
            for _ in range(10_000):
                client.send(b"")
            client.send(b"PUB a 1\r\nx\r\n")
            assert await client.flush() == b""
            assert len(waits) >= 70
            assert set(waits) == {"$G"}

    run(test())


def test_the_socket_is_not_read_while_earlier_frames_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    without_direct_work(monkeypatch)
    fed_early: list[int] = []
    feed = FrameReader.feed

    def watched(reader: FrameReader, chunk: bytes) -> None:
        if reader.more:
            fed_early.append(len(chunk))
        feed(reader, chunk)

    monkeypatch.setattr(FrameReader, "feed", watched)

    async def test() -> None:
        async with serving(websocket=replace(PLAIN, compression=True)) as server:
            offer = b"Sec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover\r\n"
            client = await RawWebSocket.dial(server)
            client.writer.write(REQUEST + offer + b"\r\n")
            assert b"permessage-deflate" in await client.head()
            client.send(EMPTY_CONNECT)
            packer = zlib.compressobj(9, wbits=-15)
            line = b"PUB bomb 1000000\r\n" + bytes(1_000_000) + b"\r\n"
            bomb = (packer.compress(line) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]
            for _ in range(20):
                client.send(bomb, first=0xC2)
                await client.writer.drain()
                await asyncio.sleep(0)
            (one,) = server.connections.values()
            await until(lambda: one.client.in_msgs == 20)
            assert not fed_early

    run(test())
