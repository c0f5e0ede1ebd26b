"""Mirrors between clusters, and of a real nats-server: exact, and resumed after failures."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from nats.js.api import ExternalStream, StreamConfig, StreamSource

from broker.local import LocalCluster
from tests.support.clusters import connect, eventually, leader_of, nats_server, run

COUNT = 300


def remote(cluster: LocalCluster, name: str) -> str:
    """Configuration of a remote, under this name, that points to the cluster."""
    urls = ", ".join(f'"{url}"' for url in cluster.urls)
    return f"remotes {{ {name} {{ urls: [{urls}] }} }}"


async def fill(client: Any, first: int, last: int) -> None:
    stream = client.jetstream()
    for i in range(first, last + 1):
        headers = {"Order": str(i), "X-Odd": "a:b"} if i % 3 == 0 else None
        await stream.publish(f"orders.{i % 5}", b"order %d" % i, headers=headers)


async def stored(client: Any, stream: str, seq: int) -> Any:
    """A stored message as the API returns it, so that nothing is rounded."""
    request = b'{"seq":%d}' % seq
    answer = await client.request(f"$JS.API.STREAM.MSG.GET.{stream}", request, timeout=10)
    return json.loads(answer.data).get("message")


async def same(origin: Any, mirror: Any, last: int) -> None:
    for seq in range(1, last + 1):
        there, here = await stored(origin, "ORDERS", seq), await stored(mirror, "COPY", seq)
        assert here == there, f"sequence {seq}"


async def caught_up(client: Any, last: int) -> None:
    async def check() -> bool:
        info = await client.jetstream().stream_info("COPY")
        return bool(info.state.last_seq == last)

    await eventually(check, f"the mirror reached {last}")


async def make_mirror(client: Any, replicas: int) -> None:
    source = StreamSource(name="ORDERS", external=ExternalStream(api="$JS.far.API", deliver=""))
    await client.jetstream().add_stream(
        StreamConfig(name="COPY", mirror=source, num_replicas=replicas)
    )


def test_a_mirror_of_a_nats_server_is_exact_and_resumes(tmp_path: Path) -> None:
    origin = LocalCluster(tmp_path / "far", size=1, name="far", command=nats_server())
    with origin:
        near = LocalCluster(tmp_path / "near", size=1, name="near", jetstream=remote(origin, "far"))
        with near:

            async def first() -> None:
                there, here = await connect(*origin.nodes), await connect(*near.nodes)
                await there.jetstream().add_stream(
                    StreamConfig(name="ORDERS", subjects=["orders.*"])
                )
                await fill(there, 1, COUNT)
                await there.jetstream().delete_msg("ORDERS", 17)
                await make_mirror(here, 1)
                await caught_up(here, COUNT)
                await same(there, here, COUNT)
                await there.close()
                await here.close()

            run(first)
            origin.nodes[0].kill()
            near.nodes[0].kill()
            origin.nodes[0].start()
            near.nodes[0].start()
            near.nodes[0].wait_healthy()

            async def second() -> None:
                there, here = await connect(*origin.nodes), await connect(*near.nodes)
                await fill(there, COUNT + 1, COUNT + 50)
                await caught_up(here, COUNT + 50)
                await same(there, here, COUNT + 50)
                info = await here.jetstream().stream_info("COPY")
                assert info.state.messages == COUNT + 49, "the deleted message is a gap here too"
                await there.close()
                await here.close()

            run(second)


def test_a_mirror_between_clusters_survives_the_kill_of_both_leaders(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "far", name="far") as origin:
        near = LocalCluster(tmp_path / "near", name="near", jetstream=remote(origin, "far"))
        with near:

            async def work() -> None:
                there, here = await connect(*origin.nodes), await connect(*near.nodes)
                await there.jetstream().add_stream(
                    StreamConfig(name="ORDERS", subjects=["orders.*"], num_replicas=3)
                )
                await fill(there, 1, 100)
                await make_mirror(here, 3)
                await caught_up(here, 100)
                far_leader = await leader_of(there, origin, "ORDERS")
                near_leader = await leader_of(here, near, "COPY")
                far_leader.kill()
                near_leader.kill()

                async def accepted() -> bool:
                    await there.jetstream().publish("orders.x", b"after", timeout=5)
                    return True

                await eventually(accepted, "publishing to the origin")
                last = (await there.jetstream().stream_info("ORDERS")).state.last_seq
                await caught_up(here, last)
                await same(there, here, last)
                await asyncio.gather(there.close(), here.close())

            run(work)
