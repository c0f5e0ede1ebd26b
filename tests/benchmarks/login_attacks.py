"""Attacks before and at the sign-in: authorization callouts, PROXY headers, consoles.

Owns: their floods, and what the servers must be configured with for them; attacks.py lists them.
May not touch: the measurement (neighbours.py)."""

from __future__ import annotations

import asyncio
import json
import time

from attack import MONITOR, Attack, publish
from door_attacks import frame
from plain_client import PlainClient

# Whoever is not in auth_users is judged by a service in the account of the attacker.
CALLOUT = """
authorization {
  auth_callout {
    issuer: AACAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAIBAEAQCAJ7AK
    auth_users: [attacker, quiet, system, hashed], account: ATTACK
  }
}
"""
PROXY = "proxy_protocol: true\n"
SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


async def _judged_logins(attack: Attack, *, connections: int) -> None:
    options = {"user": "judged", "pass": "x" * 2000, "verbose": False}
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


async def silent_callouts(attack: Attack) -> None:
    """A service that hears about every client and never answers."""
    client = await attack.client()
    client.send(b"SUB $SYS.REQ.USER.AUTH 77\r\n")
    await _judged_logins(attack, connections=1000)


async def giant_callouts(attack: Attack) -> None:
    """A service that answers with a megabyte that is no token."""
    client = await attack.client()
    body = b"a" * 500_000 + b"." + b"b" * 400_000 + b".c"

    class Service(PlainClient):
        def data_received(self, data: bytes) -> None:
            for line in data.split(b"\r\n"):
                if line.startswith(b"MSG $SYS.REQ.USER.AUTH"):
                    self.send(publish(line.split()[3].decode(), body))

    loop = asyncio.get_running_loop()
    _, service = await loop.create_connection(lambda: Service("attacker"), "127.0.0.1", attack.port)
    options = {"user": "attacker", "pass": "attacker", "verbose": False}
    service.send(b"CONNECT %b\r\nSUB $SYS.REQ.USER.AUTH 1\r\n" % json.dumps(options).encode())
    await client.request(b"nobody.listens", b"")
    await _judged_logins(attack, connections=50)


async def proxy_headers(attack: Attack) -> None:
    """Headers that never end, byte by byte, and long ones that do."""

    async def one(number: int) -> None:
        while attack.running:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", attack.port)
                if number % 2:
                    head = SIGNATURE + b"\x21\x11" + (60_000).to_bytes(2, "big")
                    writer.write(head + bytes(60_000) + b"PING\r\n")
                else:
                    for at in range(50):
                        writer.write((SIGNATURE + b"\x21\x11\xff\xff" + bytes(60))[at : at + 1])
                        await asyncio.sleep(0)
                await writer.drain()
                writer.close()
            except OSError:
                await asyncio.sleep(0.01)
            attack.done += 1

    await asyncio.gather(*(one(number) for number in range(50)))


async def _console(attack: Attack) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = attack.ports[MONITOR]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"GET /console/session HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nOrigin: http://127.0.0.1:%d\r\n"
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" % (port, port)
    )
    return reader, writer


async def message_stream(attack: Attack) -> None:
    client = await attack.client()
    await client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    await client.request(b"s.x", bytes(700_000))


async def unread_consoles(attack: Attack) -> None:
    """Sessions that ask for a large message again and again, and read nothing."""
    get = {"id": 1, "subject": "$JS.API.STREAM.MSG.GET.S", "payload": '{"seq":1}'}
    login = {"login": {"user": "attacker", "pass": "attacker"}}

    async def one() -> None:
        _, writer = await _console(attack)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(frame(json.dumps(login).encode(), 0x81))
        line = frame(json.dumps(get).encode(), 0x81)
        try:
            while attack.running:
                writer.write(line)
                await writer.drain()
                await asyncio.sleep(0.001)
                attack.done += 1
        except OSError:
            await asyncio.sleep(max(0.0, attack.until - time.perf_counter()))

    await asyncio.gather(*(one() for _ in range(32)))


async def console_sign_ins(attack: Attack) -> None:
    """Sessions that never sign in, more of them than there are places."""
    kept: list[asyncio.StreamWriter] = []
    while attack.running:
        try:
            reader, writer = await _console(attack)
            await reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.01)
            continue
        kept.append(writer)
        attack.done += 1
        if len(kept) > 200:
            kept.pop(0).close()


CONFIGS = {"silent callouts": CALLOUT, "giant callouts": CALLOUT, "proxy headers": PROXY}
LOGINS = {
    "silent callouts": (None, silent_callouts),
    "giant callouts": (None, giant_callouts),
    "proxy headers": (None, proxy_headers),
    "unread consoles": (message_stream, unread_consoles),
    "console sign-ins": (None, console_sign_ins),
}
