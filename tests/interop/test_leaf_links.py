"""How leaf node connections are made with the real server: compressed, over WebSocket, with the
roles exchanged, isolated."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.request import urlopen

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from broker.local import free_ports
from broker.server.leaf.leaf_connection import LeafConnection
from tests.interop.test_leaf_nodes import (
    CERTS,
    SIDES,
    client_of,
    crossing,
    heard,
    our_server,
    pair,
)
from tests.support.clusters import nats_server
from tests.support.http_proxy import HttpProxy
from tests.support.server import PATIENCE, Process, run, until


async def answer(message: Msg) -> None:
    await message.respond(b"")


MODES = [
    ("s2_fast", "s2_fast", "s2_fast"),
    ("s2_best", "accept", "s2_best"),
    ("off", "s2_fast", "off"),
    ("{ mode: s2_auto, rtt_thresholds: [1h] }", "s2_auto", "s2_uncompressed"),
    ("{ mode: s2_auto, rtt_thresholds: [0, 0, 1h] }", "s2_fast", "s2_better"),
]


@SIDES
@pytest.mark.parametrize(("own", "theirs", "used"), MODES)
def test_compression_is_agreed(ours: str, own: str, theirs: str, used: str, tmp_path: Path) -> None:
    modes = {"hub": f"compression: {own if ours == 'hub' else theirs}"}
    modes["leaf"] = f"compression: {own if ours == 'leaf' else theirs}"
    payload = random.Random(1).randbytes(400_000) + b"order " * 100_000

    async def work() -> None:
        async with pair(ours, tmp_path, **modes) as both:
            [link] = both.broker.server.leafs.connections()
            assert link.compression == used
            for near, far in ((both.hub, both.leaf), (both.leaf, both.hub)):
                await crossing(near, far)
                sub = await far.subscribe("large")
                answering = await far.subscribe("there", cb=answer)
                await far.flush()
                await heard(near, far, "there")
                await near.publish("large", payload)
                assert (await sub.next_msg(timeout=PATIENCE)).data == payload
                await answering.unsubscribe()

    run(work())


WEBSOCKET = 'websocket {{ listen: "127.0.0.1:{port}", {tls}, compression: true }}\n'


@asynccontextmanager
async def over_websocket(
    ours: str, place: Path, *, remote: str = "", secure: bool = False
) -> AsyncIterator[tuple[Client, Client, LeafConnection]]:
    """A client of the hub, one of the leaf node, and the connection as our side sees it."""
    [port] = free_ports(1)
    files = f'tls {{ cert_file: "{CERTS}/server-cert.pem", key_file: "{CERTS}/server-key.pem" }}'
    websocket = WEBSOCKET.format(port=port, tls=files if secure else "no_tls: true")
    hub = (
        f'listen: "127.0.0.1:-1"\nserver_name: HUB\n{websocket}'
        'leafnodes { listen: "127.0.0.1:-1" }\n'
    )
    url = f"{'wss' if secure else 'ws'}://127.0.0.1:{port}"
    leaf = (
        'listen: "127.0.0.1:-1"\nserver_name: LEAF\nleafnodes { reconnect: "50ms", remotes: [ '
        f'{{ url: "{url}"\n {remote} }} ] }}\n'
    )
    texts = {"hub": hub, "leaf": leaf}
    theirs = "leaf" if ours == "hub" else "hub"
    (place / "real.conf").write_text(texts[theirs])
    with Process("-c", str(place / "real.conf"), command=nats_server()) as process:
        async with our_server(place / "ours.conf", texts[ours]) as broker:
            await until(lambda: len(broker.server.leafs) == 1)
            [link] = broker.server.leafs.connections()
            ports = {ours: broker.server.port, theirs: process.port}
            async with client_of(ports["hub"]) as of_hub, client_of(ports["leaf"]) as of_leaf:
                yield of_hub, of_leaf, link


@SIDES
@pytest.mark.parametrize(
    ("remote", "used"),
    [
        ("", None),
        ("ws_compression: true", "off"),
        ("ws_no_masking: true, compression: s2_fast", None),
        ("compression: off, ws_compression: true, ws_no_masking: true", "off"),
    ],
)
def test_websocket(ours: str, remote: str, used: str | None, tmp_path: Path) -> None:
    async def work() -> None:
        async with over_websocket(ours, tmp_path, remote=remote) as (hub, leaf, link):
            assert link.framed
            if used is not None:
                assert link.compression in (used, "not supported" if used == "off" else used)
            await crossing(hub, leaf)
            await crossing(leaf, hub)

    run(work())


@SIDES
def test_websocket_with_tls(ours: str, tmp_path: Path) -> None:
    remote = f'tls {{ ca_file: "{CERTS}/ca.pem" }}'

    async def work() -> None:
        async with over_websocket(ours, tmp_path, remote=remote, secure=True) as (hub, leaf, _):
            await crossing(hub, leaf)
            await crossing(leaf, hub)

    run(work())


@SIDES
def test_websocket_through_a_proxy(ours: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with HttpProxy(login="u:p").running() as proxy:
            through = f'url: "http://127.0.0.1:{proxy.port}", username: u, password: p'
            options = f"proxy: {{ {through} }}"
            async with over_websocket(ours, tmp_path, remote=options) as (hub, leaf, _):
                await crossing(hub, leaf)
                await crossing(leaf, hub)
            assert proxy.asked

    run(work())


@SIDES
def test_the_side_that_dials_may_be_the_hub(ours: str, tmp_path: Path) -> None:
    """`hub: true`: what is said of the roles afterwards is exchanged."""

    async def work() -> None:
        async with pair(ours, tmp_path, leaf="hub: true") as both:
            [link] = both.broker.server.leafs.connections()
            assert link.sink is not None
            assert link.sink.kind.value == ("hub" if ours == "hub" else "leaf")
            await crossing(both.hub, both.leaf)
            await crossing(both.leaf, both.hub)

    run(work())


@pytest.mark.parametrize("asked_by", ["hub", "leaf"])
@pytest.mark.parametrize("real", ["hub", "leaf"])
def test_isolated_leaf_nodes_do_not_hear_of_each_other(
    asked_by: str, real: str, tmp_path: Path
) -> None:
    """Two leaf nodes of one hub; the real server is the hub, or one of them."""
    isolated = {asked_by: True}
    hub = (
        'listen: "127.0.0.1:-1"\nserver_name: HUB\nleafnodes { listen: "127.0.0.1:%d", '
        + ("isolate_leafnode_interest: true" if isolated.get("hub") else "")
        + " }\n"
    )

    def leaf(name: str, port: int) -> str:
        asks = "request_isolation: true" if isolated.get("leaf") else ""
        return (
            f'listen: "127.0.0.1:-1"\nserver_name: {name}\nleafnodes {{ reconnect: "50ms", '
            f'remotes: [ {{ url: "nats://127.0.0.1:{port}"\n {asks} }} ] }}\n'
        )

    [port] = free_ports(1)
    texts = {"HUB": hub % port, "ONE": leaf("ONE", port), "TWO": leaf("TWO", port)}
    theirs = "HUB" if real == "hub" else "ONE"
    (tmp_path / "real.conf").write_text(texts.pop(theirs))

    async def work() -> None:
        with Process("-c", str(tmp_path / "real.conf"), command=nats_server()) as process:
            (first, text), (second, other) = texts.items()
            async with (
                our_server(tmp_path / "a.conf", text) as a,
                our_server(tmp_path / "b.conf", other) as b,
            ):
                ports = {theirs: process.port, first: a.server.port, second: b.server.port}
                async with (
                    client_of(ports["HUB"]) as of_hub,
                    client_of(ports["ONE"]) as one,
                    client_of(ports["TWO"]) as two,
                ):
                    for client in (one, two):
                        await client.subscribe("ask", "q", cb=answer)
                        await client.subscribe(f"own.{client is one}", cb=answer)
                        await client.flush()
                        await heard(of_hub, client, f"own.{client is one}")
                    with pytest.raises(nats.errors.NoRespondersError):
                        await two.request("own.True", b"", timeout=PATIENCE)
                    with pytest.raises(nats.errors.NoRespondersError):
                        await one.request("own.False", b"", timeout=PATIENCE)

    run(work())


def fetched(url: str) -> bytes:
    with urlopen(url, timeout=PATIENCE) as response:
        return bytes(response.read())


def test_leafz_names_the_compression(tmp_path: Path) -> None:
    async def work() -> None:
        [port] = free_ports(1)
        hub = (
            f'listen: "127.0.0.1:-1"\nserver_name: HUB\nhttp: "127.0.0.1:{port}"\n'
            'leafnodes { listen: "127.0.0.1:-1", compression: s2_better }\n'
        )
        async with our_server(tmp_path / "ours.conf", hub) as broker:
            assert broker.server.leaf_listener is not None
            leaf = (
                'listen: "127.0.0.1:-1"\nleafnodes { remotes: [ { url: "nats://127.0.0.1:'
                f'{broker.server.leaf_listener.port}", compression: accept }} ] }}\n'
            )
            (tmp_path / "real.conf").write_text(leaf)
            with Process("-c", str(tmp_path / "real.conf"), command=nats_server()):
                await until(lambda: len(broker.server.leafs) == 1)
                text = await asyncio.to_thread(fetched, f"http://127.0.0.1:{port}/leafz")
                found = json.loads(text)
                assert found["leafs"][0]["compression"] == "s2_better"

    run(work())
