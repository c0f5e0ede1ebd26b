"""A log that lost its end: the member does not vote or acknowledge from what is left of it.

Three nodes; C is paused while A and B acknowledge; B is killed and its log is cut short; A is
killed. B and C are a majority, but B has forgotten what it acknowledged, so the two must not serve.
When A is back, nothing acknowledged is missing, and B fetches what it lost."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
import pytest
from nats.js.api import StreamConfig

from broker.local import LocalCluster, LocalNode
from tests.support.clusters import connect, eventually, leader_of, run

STREAM = "CUT"


def log_end(node: LocalNode) -> tuple[Path, int]:
    """The segment in use, and where what was written ends in it."""
    segments = sorted(node.directory.rglob("*.seg"))
    segment = next(s for s in reversed(segments) if any(s.read_bytes()[4096:]))
    return segment, len(segment.read_bytes().rstrip(b"\0"))


async def healthy(node: LocalNode) -> bool:
    """A node that still has to catch up before it votes is not."""
    url = f"http://127.0.0.1:{node.http_port}/healthz"
    answer = await asyncio.to_thread(urllib.request.urlopen, url)
    return bool(answer.status == 200)


async def publish(stream: Any, count: int, acked: dict[int, bytes]) -> None:
    for number in range(count):
        data = b"%d/%d" % (len(acked), number)
        acked[(await stream.publish("cut", data)).seq] = data


@pytest.mark.parametrize("loss", ["truncated", "zeros"])
def test_a_member_whose_log_was_cut_short_comes_back_as_a_learner(
    tmp_path: Path, loss: str
) -> None:
    acked: dict[int, bytes] = {}

    async def work(cluster: LocalCluster) -> None:
        client = await connect(*cluster.nodes)
        await client.jetstream().add_stream(
            StreamConfig(name=STREAM, subjects=["cut"], num_replicas=3)
        )
        await publish(client.jetstream(), 20, acked)
        a = await leader_of(client, cluster, STREAM)
        b, c = [node for node in cluster.nodes if node is not a]
        await client.close()
        client = await connect(a)
        c.pause()
        segment, before = log_end(b)
        await publish(client.jetstream(timeout=10), 300, acked)
        same, after = log_end(b)
        assert same == segment
        assert after > before + 50_000
        await client.close()
        b.kill()
        keep = before + (after - before) // 10
        content = segment.read_bytes()
        zeros = bytes(len(content) - keep) if loss == "zeros" else b""
        segment.write_bytes(content[:keep] + zeros)
        a.kill()
        b.start()
        c.resume()
        await b_and_c_do_not_serve(b, c)
        a.start()
        client = await connect(*cluster.nodes)
        stream = client.jetstream(timeout=5)
        await eventually(lambda: stream.publish("cut", b"after"), "the stream serves again")
        for seq, data in acked.items():
            assert (await stream.get_msg(STREAM, seq)).data == data, seq
        await eventually(all_current(stream), "every replica is current")
        await eventually(lambda: healthy(b), "B votes again")
        assert "rebuilding the damaged replica" in b.log_path.read_text()
        await client.close()
        a.kill()  # what B holds now is complete
        client = await connect(b, c)
        stream = client.jetstream(timeout=5)
        await eventually(lambda: stream.publish("cut", b"without A"), "B and C serve")
        for seq, data in acked.items():
            assert (await stream.get_msg(STREAM, seq)).data == data, seq
        await client.close()

    async def b_and_c_do_not_serve(b: LocalNode, c: LocalNode) -> None:
        client = await connect(b, c)
        for _ in range(2):  # each takes several election timeouts
            with pytest.raises((nats.errors.Error, nats.js.errors.Error)):
                await client.jetstream(timeout=3).publish("cut", b"must not be acknowledged")
        await client.close()

    def all_current(stream: Any) -> Any:
        async def current() -> bool:
            replicas = (await stream.stream_info(STREAM)).cluster.replicas
            return len(replicas) == 2 and all(replica.current for replica in replicas)

        return current

    with LocalCluster(tmp_path, name="cut") as cluster:
        run(lambda: work(cluster))


@pytest.mark.parametrize("loss", ["everything", "a bit of every entry"])
def test_a_node_that_lost_its_whole_log_fetches_everything_again(tmp_path: Path, loss: str) -> None:
    """The table of streams too. The other nodes serve meanwhile."""
    acked: dict[int, bytes] = {}

    async def work(cluster: LocalCluster) -> None:
        client = await connect(*cluster.nodes)
        for name, subject in ((STREAM, "cut"), ("OTHER", "other")):
            await client.jetstream().add_stream(
                StreamConfig(name=name, subjects=[subject], num_replicas=3)
            )
        await publish(client.jetstream(), 100, acked)
        leader = await leader_of(client, cluster, STREAM)
        victim = next(node for node in cluster.nodes if node is not leader)
        others = [node for node in cluster.nodes if node is not victim]
        await client.close()
        victim.kill()
        for segment in victim.directory.rglob("*.seg"):
            content = bytearray(segment.read_bytes())
            if loss == "everything":
                content[4096:] = bytes(len(content) - 4096)
            else:
                for at in range(4096 + 100, len(content.rstrip(b"\0")), 512):
                    content[at] ^= 1
            segment.write_bytes(content)
        victim.start()
        client = await connect(*others)
        stream = client.jetstream(timeout=5)
        acked[(await stream.publish("cut", b"meanwhile")).seq] = b"meanwhile"

        async def current() -> bool:
            found = [(await stream.stream_info(name)).cluster for name in (STREAM, "OTHER")]
            return all(len(c.replicas) == 2 and all(r.current for r in c.replicas) for c in found)

        await eventually(current, "every replica is current")
        await eventually(lambda: healthy(victim), "the node votes again")
        await client.close()
        others[0].kill()
        client = await connect(victim, others[1])
        stream = client.jetstream(timeout=5)
        await eventually(lambda: stream.publish("cut", b"after"), "the stream serves")
        for seq, data in acked.items():
            assert (await stream.get_msg(STREAM, seq)).data == data, seq
        await stream.add_stream(StreamConfig(name="NEW", subjects=["new"], num_replicas=1))
        await client.close()

    with LocalCluster(tmp_path, name="lost") as cluster:
        run(lambda: work(cluster))
