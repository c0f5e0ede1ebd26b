"""STREAM.INFO of a work queue shows what a client has acknowledged before it asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from nats.js.api import RetentionPolicy, StreamConfig

from broker.cluster.replica.replica import Replica
from broker.config.options import JetStreamOptions
from raft.host.group import GroupStopped
from tests.support.clients import open_client
from tests.support.server import run, running


def test_a_disk_that_takes_nothing_shows_what_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with running(jetstream=JetStreamOptions(store_dir=str(tmp_path))) as server:
            client = await open_client(f"nats://127.0.0.1:{server.port}")
            try:
                js = client.jetstream()
                queue = RetentionPolicy.WORK_QUEUE
                await js.add_stream(StreamConfig(name="Q", subjects=["q"], retention=queue))
                await js.publish("q", b"x")
                monkeypatch.setattr(Replica, "has_unapplied", property(lambda _: True))

                async def full(replica: Replica, _command: object) -> object:
                    raise GroupStopped(replica.group, "the disk is full")

                monkeypatch.setattr(Replica, "propose", full)
                assert (await js.stream_info("Q")).state.messages == 1
            finally:
                await client.close()

    run(work())


@pytest.mark.parametrize("retention", [RetentionPolicy.WORK_QUEUE, RetentionPolicy.INTEREST])
def test_acknowledged_messages_are_gone(tmp_path: Path, retention: RetentionPolicy) -> None:
    async def work() -> None:
        async with running(jetstream=JetStreamOptions(store_dir=str(tmp_path))) as server:
            client = await open_client(f"nats://127.0.0.1:{server.port}")
            js = client.jetstream()
            for name in ("A", "B", "C"):
                await js.add_stream(StreamConfig(name=name, subjects=[name], retention=retention))
                pulled = await js.pull_subscribe(name, durable="d")
                for _ in range(20):
                    await js.publish(name, b"x")
                for message in (await pulled.fetch(10))[::-1]:  # not in order
                    await message.ack()
                await client.flush()
                assert (await js.stream_info(name)).state.messages == 10
            await client.close()

    run(work())
