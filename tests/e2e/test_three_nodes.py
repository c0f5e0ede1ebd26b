"""Three real processes: replication, failover, restarts, routes, the API on every node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import ConsumerConfig, StreamConfig

from broker.client import scan
from broker.local import LocalCluster
from tests.support.clusters import connect, eventually, leader_of, restart_all, run


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    place: Path = tmp_path_factory.mktemp("nodes")
    with LocalCluster(place, name="e2e") as running:
        yield running


def test_every_node_serves_the_api_and_publishes(cluster: LocalCluster) -> None:
    async def work() -> None:
        clients = [await connect(node) for node in cluster.nodes]
        first = clients[0].jetstream()
        await first.add_stream(StreamConfig(name="ALL", subjects=["all.>"], num_replicas=3))
        for number, client in enumerate(clients, 1):
            ack = await client.jetstream().publish("all.x", b"from %d" % number)
            assert (ack.stream, ack.seq) == ("ALL", number)
            info = await client.jetstream().stream_info("ALL")
            assert info.state.last_seq == number
            assert len(info.cluster.replicas) == 2
            assert all(0 < peer.active < 60 * 10**9 for peer in info.cluster.replicas)
        for client in clients:
            subscription = await client.jetstream().subscribe("all.>", ordered_consumer=True)
            got = [(await subscription.next_msg(timeout=10)).data for _ in range(3)]
            assert got == [b"from 1", b"from 2", b"from 3"]
            await client.close()

    run(work)


def test_messages_and_requests_cross_nodes_once(cluster: LocalCluster) -> None:
    async def work() -> None:
        one, two, three = [await connect(node) for node in cluster.nodes]
        plain = await two.subscribe("cross.plain")
        wide = await two.subscribe("cross.*")
        group = [await client.subscribe("cross.group", queue="q") for client in (one, two, three)]
        await asyncio.gather(*(client.flush() for client in (one, two, three)))

        async def known() -> bool:
            await one.publish("cross.plain", b"hello")
            return bool(await plain.next_msg(timeout=0.5))

        await eventually(known, "interest of node 2 on node 1")
        while wide.pending_msgs:
            await wide.next_msg()
        await one.publish("cross.plain", b"once")
        assert (await plain.next_msg(timeout=10)).data == b"once"
        assert (await wide.next_msg(timeout=10)).data == b"once"
        for i in range(30):
            await three.publish("cross.group", b"%d" % i)
        await three.flush()

        async def all_taken() -> bool:
            return sum(s.pending_msgs for s in group) >= 30

        await eventually(all_taken, "30 messages in the queue group")
        assert sum(s.pending_msgs for s in group) == 30, "each message goes to one member"

        async def answer(message: object) -> None:
            await message.respond(b"pong")  # type: ignore[attr-defined]

        await two.subscribe("cross.ask", cb=answer)
        await two.flush()

        async def asked() -> bytes:
            return bytes((await three.request("cross.ask", b"ping", timeout=2)).data)

        assert await eventually(asked, "an answer across nodes") == b"pong"
        for client in (one, two, three):
            await client.close()

    run(work)


def test_a_publisher_does_not_notice_that_the_leader_is_killed(cluster: LocalCluster) -> None:
    async def work() -> None:
        observer = await connect(*cluster.nodes)
        await observer.jetstream().add_stream(
            StreamConfig(name="KILL", subjects=["kill.>"], num_replicas=3)
        )
        leader = await leader_of(observer, cluster, "KILL")
        others = [node for node in cluster.nodes if node is not leader]
        publisher = await connect(others[0])
        stream = publisher.jetstream()
        sequences = [(await stream.publish("kill.x", b"%d" % i)).seq for i in range(50)]
        leader.kill()
        for i in range(50, 100):
            sequences.append((await stream.publish("kill.x", b"%d" % i, timeout=30)).seq)
        assert sequences == list(range(1, 101)), "each stored once, in order, none refused"
        leader.start()
        leader.wait_healthy()
        address = f"127.0.0.1:{leader.client_port}"

        async def caught_up() -> bool:
            table = await asyncio.to_thread(_table, "KILL", address)
            return table == [b"%d" % i for i in range(100)]

        await eventually(caught_up, "the killed node has all messages again")
        await publisher.close()
        await observer.close()

    run(work)


def _table(stream: str, address: str) -> list[bytes]:
    table = scan(stream, servers=address)
    return [bytes(value) for value in table.column("data").to_pylist()]


def test_a_consumer_continues_where_it_was_after_its_leader_is_killed(
    cluster: LocalCluster,
) -> None:
    async def work() -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()
        await stream.add_stream(StreamConfig(name="WORK", subjects=["work"], num_replicas=3))
        await stream.add_consumer("WORK", ConsumerConfig(durable_name="w", ack_wait=60))
        for i in range(20):
            await stream.publish("work", b"%d" % i)
        leader = await leader_of(client, cluster, "WORK")
        others = [node for node in cluster.nodes if node is not leader]
        worker = await connect(*others)
        pull = await worker.jetstream().pull_subscribe_bind("w", "WORK")
        for message in await pull.fetch(10, timeout=10):
            await message.ack_sync(timeout=10)  # confirmed: on a majority
        leader.kill()
        seen: list[bytes] = []

        async def rest() -> bool:
            for message in await pull.fetch(10, timeout=1):
                seen.append(message.data)
                await message.ack_sync(timeout=10)
            return len(set(seen)) >= 10

        await eventually(rest, "the second half of the messages")
        assert set(seen) == {b"%d" % i for i in range(10, 20)}, "no acked message is redelivered"
        leader.start()
        leader.wait_healthy()
        await worker.close()
        await client.close()

    run(work)


def test_all_nodes_restart_and_keep_everything(cluster: LocalCluster) -> None:
    async def before() -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()
        await stream.add_stream(StreamConfig(name="KEEP", subjects=["keep.>"], num_replicas=3))
        await stream.add_stream(StreamConfig(name="KEEP1", subjects=["keep1.>"], num_replicas=1))
        for i in range(200):
            await stream.publish(f"keep.{i % 7}", b"%d" % i, headers={"Nats-Msg-Id": str(i)})
            await stream.publish("keep1.x", b"%d" % i)
        await client.close()

    async def after() -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()

        async def whole() -> bool:
            info = await stream.stream_info("KEEP")
            other = await stream.stream_info("KEEP1")
            return bool(info.state.messages == 200 and other.state.messages == 200)

        await eventually(whole, "both streams with all messages")
        repeat = await stream.publish("keep.0", b"0", headers={"Nats-Msg-Id": "0"})
        assert repeat.duplicate, "de-duplication survives the restart"
        assert repeat.seq == 1
        assert (await stream.publish("keep.0", b"new")).seq == 201
        await client.close()

    run(before)
    restart_all(cluster)
    run(after)


def test_every_publish_around_a_delete_is_answered(cluster: LocalCluster) -> None:
    """Stored before the delete, or answered with 503: no publish waits for its timeout."""

    async def work() -> None:
        publisher, other = await connect(cluster.nodes[0]), await connect(cluster.nodes[1])
        await other.jetstream().add_stream(
            StreamConfig(name="GONE", subjects=["gone.>"], num_replicas=3)
        )
        answers: dict[str, list[str]] = {}

        async def note(message: Any) -> None:
            kind = "503" if message.headers else "stored" if b'"seq"' in message.data else "other"
            answers.setdefault(message.subject, []).append(kind)

        await publisher.subscribe("answers.*", cb=note)
        sent = 0

        async def publish_until(deleted: asyncio.Task[Any]) -> None:
            nonlocal sent
            while not deleted.done():
                await publisher.publish("gone.x", b"p" * 500, reply=f"answers.{sent}")
                sent += 1
                await asyncio.sleep(0)

        async def delete() -> None:
            await eventually(lambda: _true(len(answers) > 100), "publishes in flight")
            await other.jetstream().delete_stream("GONE")

        await publish_until(asyncio.create_task(delete()))
        await publisher.flush()
        await eventually(lambda: _true(len(answers) == sent), "an answer to each publish")
        assert {len(each) for each in answers.values()} == {1}
        assert {each[0] for each in answers.values()} <= {"stored", "503"}
        await publisher.close()
        await other.close()

    run(work)


async def _true(value: bool) -> bool:
    return value


def test_an_impossible_preferred_leader_is_refused_with_the_reason(cluster: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*cluster.nodes)
        config = StreamConfig(name="PREFER", subjects=["prefer"], num_replicas=3)
        await client.jetstream().add_stream(config)
        leader = await leader_of(client, cluster, "PREFER")
        for name, problem in ((leader.name, "is already leader"), ("nobody", "not known")):
            wish = json.dumps({"placement": {"preferred": name}}).encode()
            answer = await client.request("$JS.API.STREAM.LEADER.STEPDOWN.PREFER", wish, timeout=10)
            error = json.loads(answer.data)["error"]
            assert error["err_code"] == 10005
            assert error["description"] == f'preferred server "{name}" {problem}'
        await client.close()

    run(work)
