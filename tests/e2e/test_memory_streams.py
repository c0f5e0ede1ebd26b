"""Streams with memory storage: never on disk, and lost only with the last replica."""

from __future__ import annotations

from pathlib import Path

import pytest
from nats.js.api import ConsumerConfig, StorageType, StreamConfig
from nats.js.errors import NotFoundError

from broker.local import LocalCluster
from tests.support.clusters import connect, eventually, restart_all, run

SECRET = b"a payload that is only ever in memory "


def in_memory(name: str, replicas: int) -> StreamConfig:
    return StreamConfig(
        name=name,
        subjects=[f"{name}.>"],
        num_replicas=replicas,
        storage=StorageType.MEMORY,
    )


def files_with(place: Path, text: bytes) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file() and text in path.read_bytes()]


def test_a_stream_on_one_node_is_empty_after_a_restart_and_usable(tmp_path: Path) -> None:
    async def before() -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()
        await stream.add_stream(in_memory("M", 1))
        await stream.add_consumer("M", ConsumerConfig(durable_name="c", mem_storage=True))
        await stream.add_stream(StreamConfig(name="F", subjects=["F.>"]))
        for i in range(20):
            await stream.publish("M.x", SECRET + b"%d" % i)
        await stream.publish("F.x", b"a payload that is on disk")
        await client.close()

    async def after() -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()
        info = await stream.stream_info("M")
        state = info.state
        assert (state.messages, state.first_seq, state.last_seq) == (0, 0, 0)
        assert info.config.storage == StorageType.MEMORY
        with pytest.raises(NotFoundError):
            await stream.consumer_info("M", "c")
        assert (await stream.publish("M.x", b"new")).seq == 1
        assert (await stream.stream_info("F")).state.messages == 1
        await client.close()

    with LocalCluster(tmp_path, size=1, name="alone") as cluster:
        (node,) = cluster.nodes
        run(before)
        assert files_with(tmp_path, b"a payload that is on disk")
        assert not files_with(tmp_path, SECRET)
        node.kill()
        node.start()
        node.wait_healthy()
        run(after)
        assert not files_with(tmp_path, SECRET)


def test_nothing_is_lost_until_all_replicas_restart_at_once(tmp_path: Path) -> None:
    async def publish(count: int) -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()
        info = await eventually(lambda: stream.stream_info("R"), "the stream answers")
        for _ in range(count):
            seq = info.state.last_seq + 1
            ack = await stream.publish("R.x", SECRET + b"%d" % seq, timeout=30)
            assert ack.seq == seq
            info.state.last_seq = seq
        await client.close()

    async def create() -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()
        await stream.add_stream(in_memory("R", 3))
        await stream.add_consumer("R", ConsumerConfig(durable_name="c", mem_storage=True))
        await client.close()
        await publish(10)

    async def check(count: int) -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()

        async def whole() -> bool:
            info = await stream.stream_info("R")
            return bool(info.state.messages == count and len(info.cluster.replicas) == 2)

        await eventually(whole, f"all {count} messages")
        pull = await stream.pull_subscribe_bind("c", "R")
        got: list[bytes] = []

        async def all_read() -> bool:
            got.extend(m.data for m in await pull.fetch(100, timeout=1))
            return len(set(got)) == count

        await eventually(all_read, "the consumer is there and delivers everything")
        assert got[:count] == [SECRET + b"%d" % (i + 1) for i in range(count)]
        await client.close()

    async def empty() -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()
        info = await eventually(lambda: stream.stream_info("R"), "the stream answers")
        assert info.state.messages == info.state.last_seq == 0
        ack = await eventually(lambda: stream.publish("R.x", b"new"), "it accepts messages")
        assert ack.seq == 1
        await client.close()

    with LocalCluster(tmp_path, name="memory") as cluster:
        run(create)
        for node in cluster.nodes:
            node.kill()
            run(lambda: publish(5))
            node.start()
            node.wait_healthy()  # healthy means that every stream has caught up
        run(lambda: check(25))
        assert not files_with(tmp_path, SECRET)
        restart_all(cluster)
        run(empty)
