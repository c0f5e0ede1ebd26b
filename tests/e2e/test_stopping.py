"""A node that is told to stop: what its clients published is answered before they must go."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import nats.errors
import pytest
from nats.js.api import StreamConfig

from broker.local import LocalCluster, LocalNode
from tests.support.clusters import connect, eventually, leader_of, run

AHEAD = 64  # publishes under way at any time


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("nodes"), name="stop") as running:
        yield running


async def publish_until_gone(client: Any, subject: str, node: LocalNode) -> int:
    """How many acks came from a node that is told to stop meanwhile."""
    stream = client.jetstream()
    acked = 0
    gone = asyncio.Event()

    async def lost() -> None:
        gone.set()

    client._disconnected_cb = lost

    async def one_after_another() -> None:
        nonlocal acked
        while not gone.is_set():
            try:
                await stream.publish(subject, b"x" * 100, timeout=5)
            except nats.errors.TimeoutError:
                continue
            acked += 1
            if acked == 20 * AHEAD:
                assert node.process is not None
                node.process.send_signal(signal.SIGTERM)

    async with asyncio.TaskGroup() as group:
        for _ in range(AHEAD):
            group.create_task(one_after_another())
    return acked


@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "a follower"])
def test_what_a_stopping_node_stored_is_answered(cluster: LocalCluster, leads: bool) -> None:
    async def work() -> None:
        name = "LED" if leads else "FOLLOWED"
        everywhere = await connect(*cluster.nodes)
        manager = everywhere.jetstream()
        await manager.add_stream(StreamConfig(name=name, subjects=[name], num_replicas=3))
        leader = await leader_of(everywhere, cluster, name)
        node = leader if leads else next(n for n in cluster.nodes if n is not leader)
        await everywhere.close()
        client = await connect(node)  # it has nowhere else to go
        acked = await publish_until_gone(client, name, node)
        await client.close()
        node.stop()
        other = await connect(*(n for n in cluster.nodes if n is not node))
        info = await eventually(lambda: other.jetstream().stream_info(name), "the stream")
        assert info.state.messages == acked
        await other.close()
        node.start()
        await asyncio.to_thread(node.wait_healthy)

    run(work)
