"""Publish features on three real processes: what must survive a change of leader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.local import LocalCluster
from tests.support.clusters import connect, eventually, leader_of, run

SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    place: Path = tmp_path_factory.mktemp("features")
    with LocalCluster(place, name="features") as running:
        yield running


async def create(client: Any, name: str, **config: Any) -> None:
    body = {"name": name, "subjects": [f"{name.lower()}.>"], "num_replicas": 3, **config}
    answer = await client.request(
        f"$JS.API.STREAM.CREATE.{name}", json.dumps(body).encode(), timeout=10
    )
    assert "error" not in json.loads(answer.data), answer.data


async def publish(client: Any, subject: str, data: bytes = b"", **pairs: str) -> Any:
    """The ack, or None for an empty answer. Header names: `_` is `-`."""
    headers = {name.replace("_", "-"): value for name, value in pairs.items()}
    answer = await client.request(subject, data, timeout=30, headers=headers)
    return json.loads(answer.data) if answer.data else None


def test_an_open_batch_survives_the_kill_of_its_leader(cluster: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*cluster.nodes)
        await create(client, "BATCH", allow_atomic=True)
        leader = await leader_of(client, cluster, "BATCH")
        others = [node for node in cluster.nodes if node is not leader]
        publisher = await connect(others[0])
        for number in (1, 2):
            held = await publish(
                publisher, "batch.x", b"%d" % number,
                Nats_Batch_Id="b", Nats_Batch_Sequence=str(number),
            )  # fmt: skip
            assert held is None
        leader.kill()
        committed = await publish(
            publisher, "batch.x", b"3",
            Nats_Batch_Id="b", Nats_Batch_Sequence="3", Nats_Batch_Commit="1",
        )  # fmt: skip
        assert committed == {"stream": "BATCH", "seq": 3, "batch": "b", "count": 3}
        leader.start()
        leader.wait_healthy()
        await publisher.close()
        await client.close()

    run(work)


def test_a_counter_counts_every_increment_once_across_leaders(cluster: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*cluster.nodes)
        await create(client, "COUNT", allow_msg_counter=True)
        leader = await leader_of(client, cluster, "COUNT")
        others = [node for node in cluster.nodes if node is not leader]
        publisher = await connect(others[0])
        values = [await publish(publisher, "count.x", Nats_Incr="1") for _ in range(5)]
        leader.kill()
        values += [await publish(publisher, "count.x", Nats_Incr="1") for _ in range(5)]
        assert [(ack["seq"], ack["val"]) for ack in values] == [
            (number, str(number)) for number in range(1, 11)
        ]
        leader.start()
        leader.wait_healthy()
        await publisher.close()
        await client.close()

    run(work)


def test_schedules_fire_and_delete_markers_appear(cluster: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*cluster.nodes)
        await create(
            client, "TIMED", allow_msg_schedules=True, subject_delete_marker_ttl=30 * SECOND,
            max_msgs_per_subject=1,
        )  # fmt: skip
        stream = client.jetstream()
        subscription = await stream.subscribe("timed.>", ordered_consumer=True)
        await publish(
            client, "timed.later", b"go",
            Nats_Schedule="@at 2020-01-01T00:00:00Z", Nats_Schedule_Target="timed.now",
        )  # fmt: skip
        await publish(client, "timed.short", b"x", Nats_TTL="1")
        got = [await subscription.next_msg(timeout=30) for _ in range(4)]
        shown = {(message.subject, message.data) for message in got}
        assert shown == {
            ("timed.later", b"go"), ("timed.now", b"go"), ("timed.short", b"x"),
            ("timed.short", b""),
        }  # fmt: skip
        assert got[-1].headers["Nats-Marker-Reason"] == "MaxAge"
        info = await stream.stream_info("TIMED")
        assert info.state.messages == 2
        await client.close()

    run(work)


def test_republished_messages_reach_the_clients_of_every_node(cluster: LocalCluster) -> None:
    async def work() -> None:
        clients = [await connect(node) for node in cluster.nodes]
        await create(
            clients[0], "TELL", republish={"src": "tell.>", "dest": "told.>"},
            subject_transform={"src": "tell.*", "dest": "tell.{{wildcard(1)}}.mapped"},
        )  # fmt: skip
        heard = [await client.subscribe("told.>") for client in clients]
        for client in clients:
            await client.flush()

        async def all_hear() -> bool:
            await publish(clients[0], "tell.a", b"x")
            return all([await sub.next_msg(timeout=1) for sub in heard])

        await eventually(all_hear, "every node's client hears what is republished")
        ack = await publish(clients[1], "tell.b", b"y")
        for sub in heard:
            message = await sub.next_msg(timeout=10)
            while message.subject != "told.b.mapped":
                message = await sub.next_msg(timeout=10)
            assert message.headers["Nats-Sequence"] == str(ack["seq"])
            assert message.headers["Nats-Subject"] == "tell.b.mapped"
        for client in clients:
            await client.close()

    run(work)
