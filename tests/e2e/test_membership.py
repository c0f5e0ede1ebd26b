"""Nodes come and go: a new node joins by itself, a wiped one is rebuilt, a removed one is gone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import StorageType, StreamConfig

from broker.local import LocalCluster, LocalNode
from tests.support.clusters import connect, eventually, run


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, name="nodes") as running:
        yield running


def meta_members(node: LocalNode) -> set[str]:
    """The members of the cluster as a node shows them."""
    meta: Any = node.http("/jsz")["meta_cluster"]
    return {meta["leader"], *(peer["name"] for peer in meta["replicas"])}


def voters(node: LocalNode) -> set[str]:
    """The voters of the meta group as this node's Raft log has them."""
    shown: Any = node.http("/raftz")
    (groups,) = shown.values()
    meta = groups["_meta_"]
    return {peer["name"] for peer in meta["peers"].values()} | {node.name}


async def create(client: Any, name: str, replicas: int = 3, storage: str = "file") -> None:
    kind = StorageType.FILE if storage == "file" else StorageType.MEMORY
    await client.jetstream().add_stream(
        StreamConfig(name=name, subjects=[f"{name}.>"], num_replicas=replicas, storage=kind)
    )


async def current(client: Any, name: str, *, count: int = 3) -> set[str]:
    """Wait until the stream has `count` replicas, all current. The names of their nodes."""

    async def settled() -> set[str] | None:
        answer = await client.request(f"$JS.API.STREAM.INFO.{name}", b"", timeout=3)
        group = json.loads(answer.data).get("cluster", {})
        others = group.get("replicas", [])
        level = len(others) == count - 1 and all(peer["current"] for peer in others)
        if not level or "desired" in group:
            return None
        return {group["leader"], *(peer["name"] for peer in others)}

    return set(await eventually(settled, f"{count} current replicas of {name}"))


def wipe(node: LocalNode) -> None:
    shutil.rmtree(node.directory / "data")


def test_a_new_node_with_one_route_joins_and_gets_replicas(cluster: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*cluster.nodes)
        await create(client, "BEFORE")
        late = cluster.add()
        late.start()
        late.wait_healthy()
        names = {node.name for node in cluster.nodes}

        async def all_vote() -> bool:
            return all(voters(node) == names for node in cluster.nodes)

        await eventually(all_vote, "four voters on every node")
        for node in cluster.nodes:
            assert meta_members(node) == names
        joined = await connect(late)
        info = await joined.jetstream().stream_info("BEFORE")  # it knows the streams
        assert info.config.name == "BEFORE"
        held = set()
        for number in range(4):
            await create(joined, f"AFTER{number}")
            held |= await current(client, f"AFTER{number}")
        assert late.name in held
        await joined.close()
        await client.close()

    run(work)


def test_a_wiped_node_is_rebuilt_and_the_next_failure_stops_nothing(cluster: LocalCluster) -> None:
    first, second, third = cluster.nodes

    async def work() -> None:
        client = await connect(second, third)
        names = ["FILE0", "FILE1", "FILE2", "MEM"]
        for name in names:
            await create(client, name, storage="memory" if name == "MEM" else "file")
            for number in range(50):
                await client.jetstream().publish(f"{name}.x", b"%d" % number)
        first.kill()
        wipe(first)
        first.start()
        first.wait_healthy()
        for name in names:
            assert await current(client, name) == {node.name for node in cluster.nodes}
        everyone = {node.name for node in cluster.nodes}

        async def all_vote() -> bool:
            return all(voters(node) == everyone for node in cluster.nodes)

        await eventually(all_vote, "the new incarnation votes in the meta group")
        second.kill()
        for name in names:

            async def publishes(name: str = name) -> bool:
                return bool(await client.jetstream().publish(f"{name}.x", b"after", timeout=5))

            await eventually(publishes, f"a publish to {name} with two nodes")
            message = await client.jetstream().get_msg(name, 50)
            assert message.data == b"49"
        await create(client, "NEW", replicas=1)  # the meta group has a quorum as well
        await client.close()

    run(work)
