"""A rolling upgrade from the previous version, back again, and to the end, with clients at work.

The previous version is taken out of this repository's history and runs with the plain Python
codecs. A node that is to be upgraded back later has `feature_level` in its configuration."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import KeyValueConfig, StreamConfig

from broker.cluster.meta.feature_level import NEWEST_LEVEL
from broker.local import LocalCluster, LocalNode
from tests.support.clients import open_client
from tests.support.clusters import connect, eventually, run
from tests.support.publishers import Publisher, stored

REPOSITORY = Path(__file__).parents[2]
SYSTEM = "accounts { $SYS { users: [{ user: sys, password: secret }] } }"
# Version 0.1: peer protocol 3, feature level 0.
PREVIOUS = "588eac27465284521db3ba8a73f020234e4f7bd3"


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The previous version, unpacked."""
    packed = subprocess.run(
        ["git", "archive", PREVIOUS, "broker", "raft"], cwd=REPOSITORY, capture_output=True,
        check=False,
    )  # fmt: skip
    if packed.returncode != 0:
        if os.environ.get("CI"):
            pytest.fail(f"the history of this repository is missing: {packed.stderr.decode()}")
        pytest.skip("the history of this repository is missing")
    directory = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory


class Versions:
    def __init__(self, cluster: LocalCluster, previous: Path) -> None:
        self._cluster = cluster
        self._old = {"PYTHONPATH": str(previous), "JETRAFT_PURE": "1"}

    def old(self, node: LocalNode) -> None:
        self._configure(node, self._old, "")

    def held_back(self, node: LocalNode) -> None:
        """This version, so that the node can go back."""
        self._configure(node, {}, "feature_level: 0")

    def new(self, node: LocalNode) -> None:
        self._configure(node, {}, "")

    def _configure(self, node: LocalNode, environment: dict[str, str], jetstream: str) -> None:
        node.environment = environment
        routes = [other.route_port for other in self._cluster.nodes]
        node.write_config(
            cluster=self._cluster.name, routes=routes, jetstream=jetstream, more=SYSTEM
        )


async def roll(nodes: Sequence[LocalNode], change: Any, publisher: Publisher) -> None:
    """Restart one node after the other. After each one publishing goes on, and streams are created
    on all nodes, whichever version the meta leader has."""
    for node in nodes:
        await asyncio.to_thread(node.stop)
        change(node)
        node.start()
        await asyncio.to_thread(node.wait_healthy)
        await publisher.some_more(10)
        for other in nodes:
            client = await connect(other)
            config = StreamConfig(name=f"AT-{other.name}", subjects=[other.name], num_replicas=3)
            await client.jetstream().add_stream(config)
            await client.jetstream().publish(other.name, b"x", timeout=20)
            await client.jetstream().delete_stream(config.name)
            await client.close()


async def level_and_links(node: LocalNode) -> tuple[int, int]:
    """The feature level of the cluster, and how many nodes this one is linked to."""
    client = await open_client(node.url, user="sys", password="secret")
    answer = await client.request("$JS.API.SERVER.STATUS", b"", timeout=5)
    await client.close()
    status = json.loads(answer.data)
    return status["feature_level"], sum(server["connected"] for server in status["servers"])


def test_three_nodes_are_upgraded_and_back_and_upgraded_again(
    previous: Path, tmp_path: Path
) -> None:
    cluster = LocalCluster(tmp_path, name="versions")
    versions = Versions(cluster, previous)
    cluster.prepare()
    for node in cluster.nodes:
        versions.old(node)

    async def work() -> None:
        client = await connect(*cluster.nodes)
        js = client.jetstream()
        await js.add_stream(StreamConfig(name="S", subjects=["s.>"], num_replicas=3))
        bucket = await js.create_key_value(KeyValueConfig(bucket="B", replicas=3, history=5))
        await bucket.put("version", b"old")
        pulled = await js.pull_subscribe("s.>", durable="D", stream="S")
        publisher = Publisher(client, "s.a", timeout_s=20, pause_s=0.005)
        await publisher.some_more()

        await roll(cluster.nodes, versions.held_back, publisher)
        await bucket.put("version", b"held back")
        assert await level_and_links(cluster.nodes[0]) == (0, 3)
        await roll(cluster.nodes, versions.old, publisher)
        assert (await bucket.get("version")).value == b"held back"
        await bucket.put("version", b"old again")

        await roll(cluster.nodes, versions.new, publisher)

        async def raised() -> bool:
            return await level_and_links(cluster.nodes[0]) == (NEWEST_LEVEL, 3)

        await eventually(raised, "every node has the newest feature level")
        assert (await bucket.get("version")).value == b"old again"
        acked = await publisher.stop()
        assert publisher.failed == 0
        await stored(client, "S", acked)
        got: list[bytes] = []
        while len(got) < len(acked):
            batch = await pulled.fetch(500, timeout=10)
            got.extend(message.data for message in batch)
            await asyncio.gather(*(message.ack() for message in batch))
        assert got == [acked[seq] for seq in sorted(acked)]
        await client.close()

    with cluster:
        run(work)
