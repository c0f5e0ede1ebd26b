"""Encryption at rest: nothing that clients sent can be read from the directory, a wrong key is
refused, and keys can be changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nats.js.api import ConsumerConfig, StreamConfig

from broker.local import LocalCluster, LocalNode
from tests.support.clusters import connect, run
from tests.support.server import Process

SECRET = "xyzzy-secret"  # in the name of a stream and a consumer, in subjects, headers and payloads
COUNT = 300


def with_keys(node: LocalNode, settings: str) -> None:
    node.write_config(cluster=None, routes=[], jetstream=settings)


def secrets_in(directory: Path) -> list[str]:
    """Files that hold something that must be encrypted."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert files
    return [str(path) for path in files if SECRET.encode() in path.read_bytes()]


async def fill(client: Any) -> None:
    stream = client.jetstream()
    await stream.add_stream(StreamConfig(name=SECRET, subjects=[f"{SECRET}.*"]))
    await stream.add_consumer(SECRET, ConsumerConfig(durable_name=f"c-{SECRET}"))
    for i in range(COUNT):
        headers = {"Name": SECRET} if i % 2 else None
        body = f"{SECRET} {i} ".encode() * 100
        await stream.publish(f"{SECRET}.{i % 7}", body, headers=headers)


async def read(client: Any) -> None:
    stream = client.jetstream()
    info = await stream.stream_info(SECRET)
    assert info.state.messages == COUNT
    for seq in (1, COUNT // 2, COUNT):
        message = await stream.get_msg(SECRET, seq)
        assert message.data == f"{SECRET} {seq - 1} ".encode() * 100
    assert (await stream.consumer_info(SECRET, f"c-{SECRET}")).num_pending == COUNT


def serve(node: LocalNode, *works: Any) -> None:
    async def work() -> None:
        client = await connect(node)
        for one in works:
            await one(client)
        await client.close()

    node.start()
    node.wait_healthy()
    run(work)
    node.stop()


def refused(node: LocalNode) -> str:
    with Process("-c", str(node.config_path), ready=False) as process:
        code = process.child.wait(30)
        _, log = process.drain()
    assert code != 0
    return log


@pytest.mark.parametrize("cipher", ["chachapoly", "aes"])
def test_nothing_can_be_read_without_the_key_and_keys_can_change(
    tmp_path: Path, cipher: str
) -> None:
    cluster = LocalCluster(tmp_path, size=1)
    cluster.prepare()
    node = cluster.nodes[0]
    data = node.directory / "data"
    try:
        with_keys(node, f"cipher: {cipher}, key: one")
        serve(node, fill, read)
        assert not secrets_in(data)
        serve(node, read)  # a restart reads the log and the state

        with_keys(node, "key: two")
        assert "was encrypted with" in refused(node)
        with_keys(node, "")
        assert "is encrypted, and the configuration has no key" in refused(node)
        assert not secrets_in(data)

        with_keys(node, "cipher: aes, key: two, prev_encryption_key: one")
        serve(node, read)
        with_keys(node, f"cipher: {cipher}, key: two")
        serve(node, read)
        with_keys(node, "key: one")
        assert "was encrypted with" in refused(node)
        assert not secrets_in(data)
    finally:
        cluster.stop()


def test_a_key_for_a_directory_that_is_not_encrypted_is_refused(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, size=1)
    cluster.prepare()
    node = cluster.nodes[0]
    try:
        serve(node, fill)
        assert secrets_in(node.directory / "data"), "the check of the other test can fail"
        with_keys(node, "key: one")
        assert "holds data that is not encrypted" in refused(node)
        with_keys(node, "")
        serve(node, read)
    finally:
        cluster.stop()
