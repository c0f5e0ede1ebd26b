"""Clusters that are not configured like each other: one without JetStream, one without routes."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from nats.js.api import StreamConfig

from broker.local import LocalCluster, LocalNode
from tests.support.clusters import connect, eventually, run


def test_a_cluster_forms_although_one_routed_node_has_no_jetstream(tmp_path: Path) -> None:
    async def work() -> None:
        cluster = LocalCluster(tmp_path, name="mixed")
        cluster.prepare()
        plain = cluster.nodes[0]
        text = plain.config_path.read_text()
        plain.config_path.write_text(re.sub(r"(?m)^jetstream .*$", "", text))
        with cluster:  # returns when all are healthy
            assert "JetStream" not in plain.log_tail(100)
            for node in cluster.nodes[1:]:
                said = node.log_tail(100)
                waits = said.index("Server is ready, JetStream waits for its cluster")
                assert waits < said.index("JetStream is ready")
            client = await connect(*cluster.nodes[1:])
            await client.jetstream().add_stream(
                StreamConfig(name="S", subjects=["s"], num_replicas=2)
            )
            assert (await client.jetstream().publish("s", b"1")).seq == 1
            await client.close()

    run(work)


async def warned(node: LocalNode, other: LocalNode) -> bool:
    return other.name in str(node.http("/healthz").get("warnings"))


def test_two_clusters_that_were_founded_apart_under_one_name_do_not_mix(tmp_path: Path) -> None:
    """Routes that lead to nobody else: nothing can prevent two foundings. When the nodes meet, both
    refuse, say so, and go on serving."""

    async def work() -> None:
        cluster = LocalCluster(tmp_path, size=2, name="apart")
        cluster.prepare()
        first, second = cluster.nodes
        for node in cluster.nodes:
            node.write_config(cluster="apart", routes=[node.route_port])
        with cluster:
            for node in cluster.nodes:  # the first group of both clusters has the same id
                client = await connect(node)
                try:
                    js = client.jetstream()
                    await js.add_stream(StreamConfig(name="S", subjects=["s"]))
                    assert (await js.publish("s", node.name.encode())).seq == 1
                finally:
                    await client.close()
            second.stop()
            second.write_config(cluster="apart", routes=[first.route_port, second.route_port])
            second.start()
            second.wait_healthy()
            for node, other in ((first, second), (second, first)):
                await eventually(partial(warned, node, other), f"{node.name} warns")
                assert "founded apart under the name" in node.log_tail(100)
                assert node.http("/routez")["num_routes"] == 0
                client = await connect(node)
                try:
                    js = client.jetstream()
                    assert (await js.publish("s", b"more")).seq == 2
                    assert (await js.get_msg("S", 1)).data == node.name.encode()
                finally:
                    await client.close()

    run(work)


def test_a_jetstream_node_of_a_cluster_without_routes_does_not_start(tmp_path: Path) -> None:
    """It would found a cluster of its own beside that of the nodes that route to it."""
    cluster = LocalCluster(tmp_path, name="lone")
    cluster.prepare()
    node = cluster.nodes[0]
    node.write_config(cluster="lone", routes=[])
    node.start()
    assert node.process is not None
    assert node.process.wait(30) != 0
    assert "JetStream cluster requires configured routes" in node.log_tail()
    assert not (node.directory / "data").exists(), "nothing was written"
