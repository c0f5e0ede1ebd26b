"""Clusters that are not configured like each other: one without JetStream, one without routes."""

from __future__ import annotations

import re
from pathlib import Path

from nats.js.api import StreamConfig

from broker.local import LocalCluster
from tests.support.clusters import connect, run


def test_a_cluster_forms_although_one_routed_node_has_no_jetstream(tmp_path: Path) -> None:
    async def work() -> None:
        cluster = LocalCluster(tmp_path, name="mixed")
        cluster.prepare()
        plain = cluster.nodes[0]
        text = plain.config_path.read_text()
        plain.config_path.write_text(re.sub(r"(?m)^jetstream .*$", "", text))
        with cluster:  # returns when all are healthy
            client = await connect(*cluster.nodes[1:])
            await client.jetstream().add_stream(
                StreamConfig(name="S", subjects=["s"], num_replicas=2)
            )
            assert (await client.jetstream().publish("s", b"1")).seq == 1
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
