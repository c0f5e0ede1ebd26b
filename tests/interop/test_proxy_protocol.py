"""Clients behind a load balancer that speaks the PROXY protocol, as nats-server takes them."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

from broker.local import LocalCluster, LocalNode
from tests.support.clusters import nats_server, run
from tests.support.server import PATIENCE
from tests.wire.test_proxy_header import BAD, NAMED

CONNECT = b'CONNECT {"verbose":false}\r\n'
HEADERS = (b"", *NAMED, *BAD, b"GET / HTTP/1.0\r\n\r\n")


async def seen(node: LocalNode, header: bytes, *, pieces: bool) -> Any:
    """What the server says after INFO, and which address it shows."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.client_port)
    own = writer.get_extra_info("sockname")[:2]
    try:
        async with asyncio.timeout(PATIENCE):
            info = json.loads((await reader.readline()).partition(b" ")[2])
            for at in range(0, len(header), 7 if pieces else 10_000):
                writer.write(header[at : at + (7 if pieces else 10_000)])
                await writer.drain()
                await asyncio.sleep(0)
            writer.write(CONNECT + b"PING\r\n")
            try:
                said = await reader.readline()
            except ConnectionError:
                said = b""
        url = f"http://127.0.0.1:{node.http_port}/connz"
        connz = json.loads(await asyncio.to_thread(lambda: urllib.request.urlopen(url).read()))
        shown = [(one["ip"], one["port"]) for one in connz["connections"]]
        if said.startswith(b"-ERR"):
            said = b""  # the reset that follows may overtake it
        mine = ["own" if one == tuple(own) else one for one in shown] if said else []
        return said, mine, "client_ip" in info
    finally:
        writer.close()


async def ask(node: LocalNode) -> list[Any]:
    found = []
    for header in HEADERS:
        for pieces in (False, True) if header in NAMED else (False,):
            found.append(await seen(node, header, pieces=pieces))
            await gone(node)
    return found


async def gone(node: LocalNode) -> None:
    url = f"http://127.0.0.1:{node.http_port}/connz"
    async with asyncio.timeout(PATIENCE):
        while True:
            read = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())
            if not json.loads(read)["connections"]:
                return
            await asyncio.sleep(0.01)


def test_both_servers_believe_the_same_headers(tmp_path: Path) -> None:
    settings = "proxy_protocol: true"
    with (
        LocalCluster(tmp_path / "ours", size=1, name="one", more=settings) as ours,
        LocalCluster(tmp_path / "real", 1, "one", command=nats_server(), more=settings) as theirs,
    ):
        answers, expected = (run(lambda node=one.nodes[0]: ask(node)) for one in (ours, theirs))  # type: ignore[misc]
    assert answers == expected
    assert (b"PONG\r\n", [("1.2.3.4", 1111)], False) in answers
