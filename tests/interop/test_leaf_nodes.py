"""Leaf nodes with the real server: as leaf node of ours, and ours as leaf node of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import ExternalStream, StreamSource

from broker.config.load import load, parse_flags
from broker.local import free_ports
from broker.main import Broker
from broker.server.process.tasks import Tasks
from tests.support.clients import open_client
from tests.support.clusters import nats_server
from tests.support.server import PATIENCE, Process, run, until

CERTS = Path(__file__).resolve().parents[1] / "support" / "certs"
SIDES = pytest.mark.parametrize("ours", ["hub", "leaf"])


@dataclass
class Pair:
    """A hub, a leaf node of it, and a client of each."""

    hub: Client
    leaf: Client
    broker: Broker  # ours, whichever side it is


def port_of(process: Process, what: str) -> int:
    line = next(one for one in process.log.splitlines() if f"Listening for {what}" in one)
    return int(line.rpartition(":")[2])


@asynccontextmanager
async def our_server(path: Path, text: str) -> AsyncIterator[Broker]:
    path.write_text(text)
    async with Tasks() as tasks:
        broker = Broker(load(parse_flags(["-c", str(path)])).options, tasks)
        try:
            await broker.start()
            yield broker
        finally:
            await broker.stop()


@asynccontextmanager
async def client_of(port: int) -> AsyncIterator[Client]:
    client = await open_client(f"nats://127.0.0.1:{port}")
    try:
        yield client
    finally:
        await client.close()


def hub_text(place: Path, extra: str = "") -> str:
    return (
        'listen: "127.0.0.1:-1"\nserver_name: HUB\n'
        f'leafnodes {{ listen: "127.0.0.1:-1"\n {extra} }}\n'
        f'jetstream {{ store_dir: "{place}/hub", domain: hub }}\n'
    )


def leaf_text(place: Path, port: int, extra: str = "", url: str = "nats://127.0.0.1") -> str:
    return (
        'listen: "127.0.0.1:-1"\nserver_name: LEAF\n'
        f'leafnodes {{ reconnect: "50ms", remotes: [ {{ url: "{url}:{port}"\n {extra} }} ] }}\n'
        f'jetstream {{ store_dir: "{place}/leaf", domain: leaf }}\n'
    )


@asynccontextmanager
async def pair(
    ours: str, place: Path, *, hub: str = "", leaf: str = "", url: str = "nats://127.0.0.1"
) -> AsyncIterator[Pair]:
    """Both are connected; each knows the JetStream of the other."""
    real = place / "real.conf"
    if ours == "hub":
        async with our_server(place / "ours.conf", hub_text(place, hub)) as broker:
            assert broker.server.leaf_listener is not None
            port = broker.server.leaf_listener.port
            real.write_text(leaf_text(place, port, leaf, url))
            with Process("-c", str(real), command=nats_server()) as process:
                async with joined(broker, broker.server.port, process.port) as found:
                    yield found
    else:
        real.write_text(hub_text(place, hub))
        with Process("-c", str(real), command=nats_server()) as process:
            text = leaf_text(place, port_of(process, "leafnode"), leaf, url)
            async with (
                our_server(place / "ours.conf", text) as broker,
                joined(broker, process.port, broker.server.port) as found,
            ):
                yield found


@asynccontextmanager
async def joined(broker: Broker, hub: int, leaf: int) -> AsyncIterator[Pair]:
    await until(lambda: len(broker.server.leafs) == 1)
    async with client_of(hub) as of_hub, client_of(leaf) as of_leaf:
        await reachable(of_hub, "leaf")
        await reachable(of_leaf, "hub")
        yield Pair(of_hub, of_leaf, broker)


async def reachable(client: Client, domain: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await client.request(f"$JS.{domain}.API.INFO", timeout=1)
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                await asyncio.sleep(0.02)
            else:
                return


async def heard(from_client: Client, to_client: Client, subject: str) -> None:
    """Interest has crossed: a request gets an answer."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await from_client.request(subject, b"?", timeout=1)
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                await asyncio.sleep(0.02)
            else:
                return


@SIDES
def test_messages_requests_and_groups_cross_both_ways(ours: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with pair(ours, tmp_path) as both:
            for near, far in ((both.hub, both.leaf), (both.leaf, both.hub)):
                await crossing(near, far)

    run(work())


async def crossing(near: Client, far: Client) -> None:
    """`far` subscribes, `near` publishes."""
    shares: dict[str, list[bytes]] = {"one": [], "two": [], "plain": []}

    def keep(name: str) -> Any:
        async def take(message: Msg) -> None:
            shares[name].append(message.data)

        return take

    async def answer(message: Msg) -> None:
        await message.respond(b"to " + message.data)

    subs = [
        await far.subscribe("work.a", queue="q", cb=keep("one")),
        await far.subscribe("work.a", queue="q", cb=keep("two")),
        await far.subscribe("work.*", cb=keep("plain")),
        await far.subscribe("ask", queue="a", cb=answer),
    ]
    await far.flush()
    await heard(near, far, "ask")
    reply = await near.request("ask", b"me", timeout=PATIENCE, headers={"A": "1"})
    assert reply.data == b"to me"
    sent = [b"%d" % number for number in range(200)]
    for payload in sent:
        await near.publish("work.a", payload, headers={"N": "1"} if payload == b"7" else None)
    await near.flush()
    await until(lambda: len(shares["plain"]) >= 200 and _sum(shares) >= 400)
    assert shares["plain"] == sent
    assert sorted(shares["one"] + shares["two"], key=int) == sent
    assert shares["one"], "each member has a share"
    assert shares["two"]
    for sub in subs:
        await sub.unsubscribe()
    await far.flush()
    async with asyncio.timeout(PATIENCE):
        while True:  # the last interest is withdrawn
            try:
                await near.request("ask", b"", timeout=0.2)
            except nats.errors.NoRespondersError:
                return
            except nats.errors.TimeoutError:
                continue


def _sum(shares: dict[str, list[bytes]]) -> int:
    return sum(map(len, shares.values()))


@SIDES
def test_jetstream_of_the_other_domain(ours: str, tmp_path: Path) -> None:
    """Streams, consumers and buckets of each side, used by a client of the other."""

    async def work() -> None:
        async with pair(ours, tmp_path) as both:
            for client, domain in ((both.hub, "leaf"), (both.leaf, "hub")):
                js = client.jetstream(domain=domain, timeout=PATIENCE)
                await js.add_stream(name="S", subjects=[f"{domain}.>"])
                for number in range(1, 6):
                    ack = await js.publish(f"{domain}.{number}", b"%d" % number)
                    assert (ack.seq, ack.domain) == (number, domain)
                pull = await js.pull_subscribe(f"{domain}.>", "D", stream="S")
                found = await pull.fetch(5, timeout=PATIENCE)
                expected = [f"{domain}.{number}" for number in range(1, 6)]
                assert [one.subject for one in found] == expected
                for one in found:
                    await one.ack_sync(timeout=PATIENCE)
                info = await js.consumer_info("S", "D")
                assert (info.ack_floor.stream_seq, info.num_ack_pending) == (5, 0)
                pushed = await js.subscribe(f"{domain}.>", ordered_consumer=True)
                got = [await pushed.next_msg(timeout=PATIENCE) for _ in range(5)]
                assert [one.subject for one in got] == expected
                await pushed.unsubscribe()
                bucket = await js.create_key_value(bucket="B")
                put = f"$JS.{domain}.API.$KV.B.k"  # as clients with a domain do
                await client.request(put, b"v", timeout=PATIENCE)
                assert (await bucket.get("k")).value == b"v"

    run(work())


@SIDES
def test_mirrors_and_sources_of_the_other_domain(ours: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with pair(ours, tmp_path) as both:
            sides = {"hub": both.hub.jetstream(timeout=PATIENCE)}
            sides["leaf"] = both.leaf.jetstream(timeout=PATIENCE)
            for domain, js in sides.items():
                await js.add_stream(name="S", subjects=[f"{domain}.>"])
                for number in range(1, 101):
                    await js.publish(f"{domain}.{number}", b"%d" % number)
            for domain, other in (("hub", "leaf"), ("leaf", "hub")):
                external = ExternalStream(api=f"$JS.{other}.API")
                origin = StreamSource(name="S", external=external)
                js = sides[domain]
                await js.add_stream(name="M", mirror=origin)
                await js.add_stream(name="A", sources=[origin])
            for domain, other in (("hub", "leaf"), ("leaf", "hub")):
                for name in ("M", "A"):
                    await copied(sides[domain], name, 100)
                    last = await sides[domain].get_msg(name, 100)
                    assert (last.subject, last.data) == (f"{other}.100", b"100")
                await sides[other].publish(f"{other}.more", b"x")
            for js in sides.values():
                for name in ("M", "A"):
                    await copied(js, name, 101)

    run(work())


async def copied(js: Any, name: str, count: int) -> None:
    async with asyncio.timeout(2 * PATIENCE):
        while (await js.stream_info(name)).state.messages != count:
            await asyncio.sleep(0.02)


@SIDES
def test_users_tls_and_refusals(ours: str, tmp_path: Path) -> None:
    server = f'cert_file: "{CERTS}/server-cert.pem", key_file: "{CERTS}/server-key.pem"'
    hub = f"tls {{ {server} }}\n authorization {{ user: u, password: p }}"
    leaf = f'tls {{ ca_file: "{CERTS}/ca.pem" }}'

    async def work() -> None:
        async with pair(ours, tmp_path, hub=hub, leaf=leaf, url="tls://u:p@127.0.0.1") as both:
            await crossing(both.hub, both.leaf)

    run(work())


def test_a_loop_with_the_real_server_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours is the leaf node of the real server, and the real server that of ours. Either may find
    the loop; both say so."""
    [port] = free_ports(1)

    def leaf_of(other: int, own: int, name: str) -> str:
        remotes = f'remotes: [ {{ url: "nats://127.0.0.1:{other}" }} ]'
        leafs = f'leafnodes {{ listen: "127.0.0.1:{own}", {remotes} }}'
        return f'listen: "127.0.0.1:-1"\nserver_name: {name}\n{leafs}\n'

    async def work() -> None:
        real = tmp_path / "real.conf"
        real.write_text(leaf_of(port, -1, "R"))
        with Process("-c", str(real), command=nats_server()) as process:
            text = leaf_of(port_of(process, "leafnode"), port, "J")
            async with our_server(tmp_path / "ours.conf", text):
                await until(lambda: 'Loop detected for leafnode account="$G"' in caplog.text)

    run(work())


EVENTS = (
    'listen: "127.0.0.1:-1"\naccounts { A { users: [{user: a, password: a}] }, '
    "SYS { users: [{user: s, password: s}] } }\nsystem_account: SYS\n"
)


async def told_of_a_leaf(place: Path, hub: int, leaf_port: int) -> list[Any]:
    """The events of the hub while a leaf node comes and goes: subjects, fields, client."""
    text = (
        f'{EVENTS}server_name: LEAF\nleafnodes {{ reconnect: "50ms", remotes: [ '
        f'{{ url: "nats://a:a@127.0.0.1:{leaf_port}", account: A }} ] }}\n'
    )
    (place / "events-leaf.conf").write_text(text)
    watcher = await open_client(f"nats://127.0.0.1:{hub}", user="s", password="s")
    found = []
    events = await watcher.subscribe("$SYS.ACCOUNT.A.>")
    await watcher.flush()
    with Process("-c", str(place / "events-leaf.conf"), command=nats_server()):
        messages = [await events.next_msg(timeout=PATIENCE) for _ in range(2)]
    messages += [await events.next_msg(timeout=PATIENCE) for _ in range(2)]
    await watcher.close()
    for message in messages:
        event = json.loads(message.data)
        client = event.get("client", {})
        shown = {key: client[key] for key in client if key not in ("start", "stop", "rtt", "id")}
        found.append((message.subject, set(event), set(client), shown, event.get("leafnodes")))
    return found


def test_events_of_leaf_nodes(tmp_path: Path) -> None:
    async def test() -> None:
        hub = f'{EVENTS}leafnodes {{ listen: "127.0.0.1:-1" }}\n'
        async with our_server(tmp_path / "ours.conf", hub) as broker:
            assert broker.server.leaf_listener is not None
            port = broker.server.leaf_listener.port
            ours = await told_of_a_leaf(tmp_path, broker.server.port, port)
        (tmp_path / "real.conf").write_text(hub)
        with Process("-c", str(tmp_path / "real.conf"), command=nats_server()) as real:
            theirs = await told_of_a_leaf(tmp_path, real.port, port_of(real, "leafnode"))
        assert ours == theirs
        assert [one[0].rpartition(".")[2] for one in ours] == [
            "CONNS", "CONNECT", "CONNS", "DISCONNECT",
        ]  # fmt: skip

    run(test())
