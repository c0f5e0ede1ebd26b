"""A node that stops answers every publish it has stored before it closes its connections."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from nats.js.api import StreamConfig

from broker.local import LocalCluster, LocalNode
from tests.support.clusters import WITHIN_S, connect, eventually, leader_of, run

IN_FLIGHT = 64  # publishes without an answer at any time
HANDLED_WITHIN_S = 1.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("nodes"), name="stop") as running:
        yield running


async def publish_until_gone(client: Any, subject: str, node: LocalNode) -> int:
    """How many acks came from a node that gets SIGTERM meanwhile."""
    stream = client.jetstream()
    acked = 0
    gone = asyncio.Event()

    async def lost() -> None:
        gone.set()

    client._disconnected_cb = lost

    async def one_after_another() -> None:
        nonlocal acked
        while not gone.is_set():
            await stream.publish(subject, b"x" * 100, timeout=WITHIN_S)
            acked += 1
            if acked == 20 * IN_FLIGHT:
                assert node.process is not None
                node.process.send_signal(signal.SIGTERM)

    async with asyncio.TaskGroup() as group:
        publishers = [group.create_task(one_after_another()) for _ in range(IN_FLIGHT)]
        await gone.wait()
        # Every ack has been read by now. The client hands them out in the next turns of the loop;
        # what has no answer then gets none.
        await asyncio.sleep(HANDLED_WITHIN_S)
        for publisher in publishers:
            publisher.cancel()
    return acked


@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "a follower"])
def test_every_publish_that_a_stopping_node_stored_is_answered(
    cluster: LocalCluster, leads: bool
) -> None:
    async def work() -> None:
        name = "LED" if leads else "FOLLOWED"
        everywhere = await connect(*cluster.nodes)
        manager = everywhere.jetstream()
        await manager.add_stream(StreamConfig(name=name, subjects=[name], num_replicas=3))
        leader = await leader_of(everywhere, cluster, name)
        node = leader if leads else next(n for n in cluster.nodes if n is not leader)
        await everywhere.close()
        client = await connect(node)  # it knows no other node
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


STOPS = 4  # each time the node that the client is connected to
PUBLISHES_PER_SECOND = 300


async def publish_steadily(client: Any, subject: str, end: asyncio.Event) -> list[BaseException]:
    """Publish at a constant rate, without waiting for acks; the publishes that failed."""
    stream = client.jetstream()
    begun = asyncio.get_running_loop().time()
    publishes: list[asyncio.Task[Any]] = []
    while not end.is_set():
        publish = stream.publish(subject, b"x", timeout=WITHIN_S)
        publishes.append(asyncio.create_task(publish))
        due = begun + len(publishes) / PUBLISHES_PER_SECOND
        await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
    results = await asyncio.gather(*publishes, return_exceptions=True)
    return [result for result in results if isinstance(result, BaseException)]


def test_no_publish_fails_when_the_node_of_the_client_stops(cluster: LocalCluster) -> None:
    """What the client sends before it notices is stored, and acknowledged where it goes."""

    async def work() -> None:
        client = await connect(*cluster.nodes)
        await client.jetstream().add_stream(
            StreamConfig(name="MOVED", subjects=["MOVED"], num_replicas=3)
        )
        end = asyncio.Event()
        publishing = asyncio.create_task(publish_steadily(client, "MOVED", end))
        for _ in range(STOPS):
            port = client.connected_url.port
            node = next(n for n in cluster.nodes if n.client_port == port)
            await asyncio.to_thread(node.stop)
            node.start()
            await asyncio.to_thread(node.wait_healthy)

            async def connected() -> bool:
                return bool(client.is_connected)

            await eventually(connected, "a connection to another node")
        end.set()
        assert await publishing == []
        await client.close()

    run(work)
