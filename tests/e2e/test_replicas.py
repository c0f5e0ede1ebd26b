"""Changes of num_replicas under load: members join, catch up, vote and leave, and no acknowledged
message is lost whichever node is killed meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import ConsumerConfig

from broker.local import LocalCluster, LocalNode
from tests.support.clusters import connect, eventually, leader_of, run
from tests.support.publishers import Publisher, stored


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("nodes"), name="replicas") as running:
        yield running


async def ask(
    client: Any, subject: str, body: dict[str, object], *, timeout: float = 20
) -> dict[str, Any]:
    answer = await client.request(f"$JS.API.{subject}", json.dumps(body).encode(), timeout=timeout)
    return dict(json.loads(answer.data))


async def create(client: Any, name: str, replicas: int, storage: str = "file") -> None:
    answer = await ask(client, f"STREAM.CREATE.{name}", config(name, replicas, storage))
    assert "error" not in answer


async def scale(client: Any, name: str, replicas: int, storage: str = "file") -> dict[str, Any]:
    answer = await ask(client, f"STREAM.UPDATE.{name}", config(name, replicas, storage))
    if "error" in answer:
        return dict(answer["error"])
    assert answer["config"]["num_replicas"] == replicas
    return answer


def config(name: str, replicas: int, storage: str) -> dict[str, object]:
    return {
        "name": name, "subjects": [f"{name}.>"], "num_replicas": replicas, "storage": storage,
    }  # fmt: skip


async def settled(client: Any, name: str, replicas: int) -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        # A request that a killed node took with it is sent again soon.
        info = await ask(client, f"STREAM.INFO.{name}", {}, timeout=3)
        group = info.get("cluster", {})
        others = group.get("replicas", [])
        level = len(others) == replicas - 1 and all(peer["current"] for peer in others)
        return info if level and "desired" not in group else None

    return dict(await eventually(there, f"{replicas} replicas of {name}"))


def holders(cluster: LocalCluster, name: str) -> set[str]:
    """The nodes that report a replica of the stream."""
    found = set()
    for node in cluster.nodes:
        accounts: Any = node.http("/jsz?streams=true&accounts=true")["account_details"]
        streams = [stream for account in accounts for stream in account["stream_detail"]]
        if any(stream["name"] == name for stream in streams):
            found.add(node.name)
    return found


def restart(node: LocalNode) -> None:
    node.start()
    node.wait_healthy()


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_a_stream_that_grew_survives_its_first_node(cluster: LocalCluster, storage: str) -> None:
    name = f"GROW{storage}"

    async def work() -> LocalNode:
        client = await connect(*cluster.nodes)
        await create(client, name, 1, storage)
        consumer = ConsumerConfig(durable_name="c", ack_policy="explicit")  # type: ignore[arg-type]
        await client.jetstream().add_consumer(name, consumer)
        publisher = Publisher(client, f"{name}.x")
        await publisher.some_more()
        single = await leader_of(client, cluster, name)
        await scale(client, name, 3, storage)
        await publisher.some_more()
        await settled(client, name, 3)
        single.kill()
        await publisher.some_more()
        acked = await publisher.stop()
        await stored(client, name, acked)
        pull = await client.jetstream().pull_subscribe_bind("c", name)
        first = (await pull.fetch(1, timeout=20))[0]
        assert first.metadata.sequence.stream == 1
        await client.close()
        return single

    killed = run(work)
    restart(killed)


def test_a_stream_that_shrank_is_on_one_node_and_grows_again(cluster: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*cluster.nodes)
        await create(client, "SHRINK", 3)
        publisher = Publisher(client, "SHRINK.x")
        await publisher.some_more()
        await scale(client, "SHRINK", 1)
        info = await settled(client, "SHRINK", 1)
        leader = info["cluster"]["leader"]

        async def gone() -> bool:
            return await asyncio.to_thread(holders, cluster, "SHRINK") == {leader}

        await eventually(gone, "the other nodes drop their replicas")
        other = next(node for node in cluster.nodes if node.name != leader)
        other.kill()
        await publisher.some_more()
        await asyncio.to_thread(restart, other)
        assert await gone()
        await scale(client, "SHRINK", 3)
        await settled(client, "SHRINK", 3)
        assert len(await asyncio.to_thread(holders, cluster, "SHRINK")) == 3
        first = next(node for node in cluster.nodes if node.name == leader)
        first.kill()
        await publisher.some_more()
        await stored(client, "SHRINK", await publisher.stop())
        await asyncio.to_thread(restart, first)
        await settled(client, "SHRINK", 3)
        await client.close()

    run(work)


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_the_founder_leaves_and_comes_back(cluster: LocalCluster, storage: str) -> None:
    """The founder was once the only voter: it must not elect itself and start a second log."""
    name = f"FOUNDER{storage}"

    async def work() -> None:
        client = await connect(*cluster.nodes)
        await create(client, name, 1, storage)
        founder = await leader_of(client, cluster, name)
        publisher = Publisher(client, f"{name}.x")
        await publisher.some_more()

        async def led_by_another() -> bool:
            await ask(client, f"STREAM.LEADER.STEPDOWN.{name}", {})
            return await leader_of(client, cluster, name) is not founder

        async def left_to_another() -> bool:
            """The meta leader may learn of the new leader too late and keep the founder."""
            await scale(client, name, 3, storage)
            await settled(client, name, 3)
            await eventually(led_by_another, "another leader")
            await scale(client, name, 1, storage)
            await settled(client, name, 1)
            return await leader_of(client, cluster, name) is not founder

        await eventually(left_to_another, "one replica, not the founder's")

        async def gone() -> bool:
            return founder.name not in await asyncio.to_thread(holders, cluster, name)

        await eventually(gone, "the founder drops its replica")
        await publisher.some_more()
        await scale(client, name, 3, storage)
        await settled(client, name, 3)
        await publisher.some_more()
        await stored(client, name, await publisher.stop())
        await client.close()

    run(work)


def test_a_node_that_was_down_drops_its_replica_when_it_is_back(cluster: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*cluster.nodes)
        await create(client, "AWAY", 3)
        await client.jetstream().publish("AWAY.x", b"one")
        leader = await leader_of(client, cluster, "AWAY")
        await client.close()
        away = next(node for node in cluster.nodes if node is not leader)
        away.kill()
        client = await connect(*(node for node in cluster.nodes if node is not away))
        await scale(client, "AWAY", 1)
        await settled(client, "AWAY", 1)
        await asyncio.to_thread(restart, away)

        async def gone() -> bool:
            return await asyncio.to_thread(holders, cluster, "AWAY") == {leader.name}

        await eventually(gone, "the other nodes drop their replicas")
        await stored(client, "AWAY", {1: b"one"})
        await client.close()

    run(work)


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_a_change_continues_after_its_leader_was_killed(
    cluster: LocalCluster, storage: str
) -> None:
    """While one of the new nodes is paused the change cannot finish; a restart of the old node does
    not forget it. A memory stream loses its messages with the only node that has them."""
    name = f"RESUME{storage}"

    async def work() -> None:
        client = await connect(*cluster.nodes)
        await create(client, name, 1, storage)
        single = await leader_of(client, cluster, name)
        late = next(node for node in cluster.nodes if node is not single)
        acked = {}
        for number in range(1, 21):
            acked[number] = b"%d" % number
            await client.jetstream().publish(f"{name}.x", acked[number])
        await client.close()
        client = await connect(*(node for node in cluster.nodes if node is not late))
        late.pause()
        answer = await scale(client, name, 3, storage)
        assert answer["cluster"]["desired"]["origin"] == {"replicas": 1}
        assert len(answer["cluster"]["desired"]["replicas"]) == 3

        async def waiting() -> bool:
            group = (await ask(client, f"STREAM.INFO.{name}", {}))["cluster"]
            return bool(group["desired"]["status"]["type"] == "catchup")

        await eventually(waiting, "one new member has caught up, the other has not")
        single.kill()
        single.start()
        late.resume()
        info = await settled(client, name, 3)
        if storage == "file":
            await stored(client, name, acked)
        else:
            assert info["state"]["messages"] == 0
        ack = await client.jetstream().publish(f"{name}.x", b"next", timeout=20)
        assert ack.seq == (21 if storage == "file" else 1)
        await client.close()

    run(work)
    for node in cluster.nodes:
        node.wait_healthy()


def test_a_new_replica_replays_every_configuration(cluster: LocalCluster) -> None:
    """What an old limit refused must not appear on a node that joined under the new limit."""

    async def work() -> LocalNode:
        client = await connect(*cluster.nodes)
        limits = {**config("LIMITS", 1, "file"), "max_msgs": 5, "discard": "new"}
        assert "error" not in await ask(client, "STREAM.CREATE.LIMITS", limits)
        accepted = 0
        for number in range(1, 11):
            answer = await client.request("LIMITS.x", b"%d" % number, timeout=20)
            accepted += "error" not in json.loads(answer.data)
        assert accepted == 5
        limits["max_msgs"] = 100
        assert "error" not in await ask(client, "STREAM.UPDATE.LIMITS", limits)
        single = await leader_of(client, cluster, "LIMITS")
        limits["num_replicas"] = 3
        assert "error" not in await ask(client, "STREAM.UPDATE.LIMITS", limits)
        await settled(client, "LIMITS", 3)
        single.kill()

        async def accepted() -> Any:
            """The client may lose the connection, and the publish with it; its id makes it safe
            to send again."""
            once = {"Nats-Msg-Id": "last"}
            return await client.jetstream().publish("LIMITS.x", b"last", timeout=5, headers=once)

        ack = await eventually(accepted, "a publish after the kill")
        assert ack.seq == 6
        await stored(client, "LIMITS", {seq: b"%d" % seq for seq in range(1, 6)})
        await client.close()
        return single

    killed = run(work)
    restart(killed)


def test_a_change_is_reversed_before_it_finishes(cluster: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*cluster.nodes)
        await create(client, "BACK", 1)
        await client.jetstream().publish("BACK.x", b"one")
        for replicas in (3, 1, 3, 2, 1, 3):
            await scale(client, "BACK", replicas)
        await settled(client, "BACK", 3)
        await stored(client, "BACK", {1: b"one"})
        await client.close()

    run(work)


def test_impossible_replica_counts_are_refused(cluster: LocalCluster) -> None:
    """With the codes and texts of nats-server."""

    async def work() -> None:
        client = await connect(*cluster.nodes)
        await create(client, "NO", 1)
        refused = await scale(client, "NO", 5)
        assert (refused["code"], refused["err_code"]) == (400, 10005)
        assert refused["description"] == "no suitable peers for placement"
        assert (await scale(client, "NO", 6))["err_code"] == 10052
        assert (await scale(client, "NO", -1))["err_code"] == 10133
        info = await ask(client, "STREAM.INFO.NO", {})
        assert info["config"]["num_replicas"] == 1
        assert "desired" not in info["cluster"]
        await client.close()

    run(work)


def test_five_replicas_and_three_again(tmp_path: Path) -> None:
    async def work() -> None:
        client = await connect(*five.nodes)
        await create(client, "FIVE", 3)
        publisher = Publisher(client, "FIVE.x")
        await publisher.some_more()
        await scale(client, "FIVE", 5)
        await settled(client, "FIVE", 5)
        for node in five.nodes[:2]:
            node.kill()
        await publisher.some_more()
        for node in five.nodes[:2]:
            node.start()
        await settled(client, "FIVE", 5)
        await scale(client, "FIVE", 3)
        await settled(client, "FIVE", 3)

        async def gone() -> bool:
            return len(await asyncio.to_thread(holders, five, "FIVE")) == 3

        await eventually(gone, "two nodes drop their replicas")
        await stored(client, "FIVE", await publisher.stop())
        await client.close()

    with LocalCluster(tmp_path, size=5, name="five") as five:
        run(work)


def test_a_single_node_refuses_more_replicas(tmp_path: Path) -> None:
    async def work() -> None:
        client = await connect(*alone.nodes)
        await create(client, "ONE", 1)
        assert (await scale(client, "ONE", 3))["err_code"] == 10074
        await client.close()

    with LocalCluster(tmp_path, size=1, name="alone") as alone:
        run(work)
