"""sync_interval: acks do not wait for fsync, and the server warns about it."""

from __future__ import annotations

from pathlib import Path

from nats.js.api import StreamConfig

from broker.local import LocalCluster
from tests.support.clusters import connect, eventually, run

WARNING = (
    "sync_interval 3600s: acks do not wait for fsync, a power cut may take acknowledged "
    "messages of that time"
)


def test_a_killed_process_loses_nothing_and_the_operator_is_warned(tmp_path: Path) -> None:
    async def before() -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()
        await stream.add_stream(StreamConfig(name="S", subjects=["s"]))
        for i in range(200):
            await stream.publish("s", b"%d" % i)
        await client.close()

    async def after() -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()
        info = await eventually(lambda: stream.stream_info("S"), "the stream")
        assert info.state.messages == 200
        assert (await stream.get_msg("S", 200)).data == b"199"
        await client.close()

    with LocalCluster(tmp_path, size=1, name="loose", jetstream="sync_interval: 1h") as cluster:
        (node,) = cluster.nodes
        run(before)
        assert node.http("/healthz") == {"status": "ok", "warnings": [WARNING]}
        config = node.http("/varz")["jetstream"]["config"]  # type: ignore[index]
        assert config["sync_interval"] == 3600 * 10**9
        assert "sync_always" not in config
        log = node.log_path.read_text()
        assert log.count(WARNING) == 1
        node.kill()
        node.start()
        node.wait_healthy()
        run(after)


def test_by_default_every_ack_waits_for_fsync(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, size=1, name="strict") as cluster:
        (node,) = cluster.nodes
        assert node.http("/healthz") == {"status": "ok"}
        config = node.http("/varz")["jetstream"]["config"]  # type: ignore[index]
        assert config["sync_always"] is True
        assert "Every ack waits for fsync on a majority of replicas" in node.log_path.read_text()
