"""A securely deleted message disappears from every file of every replica."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from nats.js.api import StreamConfig

from broker.local import LocalCluster
from tests.support.clusters import connect, eventually, restart_all, run


def holders(place: Path, text: bytes) -> list[str]:
    """Files that contain the bytes; files that are removed during the search are skipped."""
    found = []
    for path in place.rglob("*"):
        try:
            if path.is_file() and text in path.read_bytes():
                found.append(str(path.relative_to(place)))
        except FileNotFoundError:
            continue
    return found


@pytest.mark.parametrize("size", [1, 3])
def test_an_erased_payload_is_in_no_file(tmp_path: Path, size: int) -> None:
    small, large, kept = (secrets.token_hex(64).encode() for _ in range(3))

    async def work() -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()
        for name in ("S", "OTHER"):
            await stream.add_stream(
                StreamConfig(name=name, subjects=[f"{name}.>"], num_replicas=size)
            )
        await stream.publish("S.small", small)
        await stream.publish("S.large", large * 100, headers={"Secret": large.decode()})
        await stream.publish("S.kept", kept)
        for i in range(50):
            await stream.publish("OTHER.x", b"%d" % i * 2000)
        for node in cluster.nodes:
            assert holders(node.directory, large), "an acked message is on disk"
        assert await stream.delete_msg("S", 1)
        assert await stream.delete_msg("S", 2)

        async def gone() -> bool:
            return not holders(tmp_path, small) and not holders(tmp_path, large)

        await eventually(gone, "no file holds the erased payloads")
        for node in cluster.nodes:
            assert holders(node.directory, kept), "other messages stay on disk"
        assert (await stream.get_msg("S", 3)).data == kept
        assert (await stream.publish("S.more", b"more")).seq == 4
        await client.close()

    async def after() -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()
        info = await eventually(lambda: stream.stream_info("S"), "the stream")
        assert (info.state.messages, info.state.first_seq, info.state.last_seq) == (2, 3, 4)
        assert (await stream.get_msg("S", 3)).data == kept
        assert (await stream.stream_info("OTHER")).state.messages == 50
        await client.close()

    with LocalCluster(tmp_path, size=size, name="erase") as cluster:
        run(work)
        restart_all(cluster)
        run(after)


def test_an_erasure_that_a_crash_interrupted_is_finished_after_the_restart(tmp_path: Path) -> None:
    secret = secrets.token_hex(64).encode()

    async def erase() -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream()
        await stream.add_stream(StreamConfig(name="S", subjects=["s"]))
        await stream.publish("s", secret)
        await stream.publish("s", b"kept")
        assert await stream.delete_msg("S", 1)
        await client.close()

    with LocalCluster(tmp_path, size=1, name="erase") as cluster:
        (node,) = cluster.nodes
        run(erase)
        node.kill()
        if not holders(tmp_path, secret):
            pytest.fail("the erasure finished before the kill: nothing was interrupted")
        node.start()
        node.wait_healthy()

        async def finished() -> None:
            async def gone() -> bool:
                return not holders(tmp_path, secret)

            await eventually(gone, "no file holds the erased payload")

        run(finished)
