"""A cluster of ours with JetStream as leaf node of the real server: what the hub sends is stored
once, whichever nodes are up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors

from broker.local import LocalCluster, LocalNode
from tests.interop.test_leaf_nodes import client_of, port_of
from tests.support.clusters import WITHIN_S, connect, eventually, nats_server, run
from tests.support.server import Process

HUB = (
    'listen: "127.0.0.1:-1"\nserver_name: HUB\nleafnodes {{ listen: "127.0.0.1:-1" }}\n'
    'jetstream {{ store_dir: "{place}/hub", domain: hub }}\n'
)


def speakers(cluster: LocalCluster) -> list[LocalNode]:
    """The nodes that take messages of the hub for streams. A node that is down takes none."""
    found = []
    for node in cluster.nodes:
        try:
            leafs: Any = node.http("/leafz")["leafs"]
        except OSError:
            continue
        found += [node for leaf in leafs if leaf["is_spoke"] and leaf["speaks"]]
    return found


async def one_speaker(cluster: LocalCluster) -> LocalNode:
    async def found() -> LocalNode | None:
        speaking = speakers(cluster)
        return speaking[0] if len(speaking) == 1 else None

    node: LocalNode = await eventually(found, "one node speaks to the hub")
    return node


async def stored(js: Any, subject: str, count: int) -> None:
    for number in range(count):

        async def publish(number: int = number) -> Any:
            return await js.publish(subject, b"%d" % number, headers={"Nats-Msg-Id": f"{number}"})

        await eventually(publish, "the stream answers the hub's client")


def test_a_cluster_with_jetstream_stores_what_the_hub_sends_once(tmp_path: Path) -> None:
    async def work() -> None:
        (tmp_path / "hub.conf").write_text(HUB.format(place=tmp_path))
        with Process("-c", str(tmp_path / "hub.conf"), command=nats_server()) as hub:
            remote = f'url: "nats://127.0.0.1:{port_of(hub, "leafnode")}"'
            more = f'leafnodes {{ reconnect: "100ms", remotes: [ {{ {remote} }} ] }}\n'
            with LocalCluster(tmp_path / "ours", size=3, name="leafs", more=more) as cluster:
                await crossed(cluster, hub.port)

    run(work)


async def crossed(cluster: LocalCluster, hub_port: int) -> None:
    near = await connect(*cluster.nodes)
    js = near.jetstream(timeout=WITHIN_S)

    async def created() -> Any:
        return await js.add_stream(name="S", subjects=["orders.>"], num_replicas=3)

    await eventually(created, "the stream exists")
    first = await one_speaker(cluster)
    async with client_of(hub_port) as client:
        # A plain message has no id: were it stored by each node, all of them would count.
        await stored(client.jetstream(timeout=2), "orders.with.ack", 1)
        for number in range(100):
            await client.publish("orders.plain", b"%d" % number)
        await client.flush()

        async def arrived() -> bool:
            return bool((await js.stream_info("S")).state.messages >= 101)

        await eventually(arrived, "the messages are stored")
        # A client of a node that does not speak makes the hub send it everything as well.
        other = next(node for node in cluster.nodes if node is not first)
        watching = await connect(other)
        sub = await watching.subscribe("orders.>")
        await watching.flush()
        await watched(client, sub)
        await unchanged(js)
        # The API of the cluster, by its domain's absence: consumers of the hub's client.
        pulled = await near.jetstream().pull_subscribe("orders.>", "D", stream="S")
        assert len(await pulled.fetch(100, timeout=WITHIN_S)) == 100
        first.kill()
        second = await one_speaker(cluster)
        assert second is not first
        await stored(client.jetstream(timeout=2), "orders.more", 1)
        before = (await js.stream_info("S")).state.messages
        for number in range(50):
            await client.publish("orders.again", b"%d" % number)
        await client.flush()

        async def more() -> bool:
            return bool((await js.stream_info("S")).state.messages >= before + 50)

        await eventually(more, "the next speaker stores")
        assert (await js.stream_info("S")).state.messages == before + 50
        first.start()
        first.wait_healthy()
        await one_speaker(cluster)


async def watched(client: Any, sub: Any) -> None:
    """Messages of the hub reach the subscription."""

    async def heard() -> bool:
        await client.publish("orders.watch", b"")
        await client.flush()
        try:
            await sub.next_msg(timeout=0.5)
        except nats.errors.TimeoutError:
            return False
        return True

    await eventually(heard, "the subscription of another node is heard of")


async def unchanged(js: Any) -> None:
    """Every message is in the stream once: the numbers of plain ones are all different."""
    info = await js.stream_info("S", subjects_filter="orders.plain")
    assert info.state.subjects == {"orders.plain": 100}
    for number in range(100):
        message = await js.get_msg("S", 2 + number)
        assert (message.subject, message.data) == ("orders.plain", b"%d" % number)
