"""Mirrors between clusters, and of a real nats-server: exact, and resumed after failures."""

from __future__ import annotations

import asyncio
import base64
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


def test_a_backlog_is_read_in_blocks_with_filters_gaps_and_subjects(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "far", size=1, name="far") as origin:
        near = LocalCluster(tmp_path / "near", size=1, name="near", jetstream=remote(origin, "far"))
        with near:

            async def work() -> None:
                there, here = await connect(*origin.nodes), await connect(*near.nodes)
                await there.jetstream().add_stream(
                    StreamConfig(name="ORDERS", subjects=["orders.*"])
                )
                await fill(there, 1, COUNT)
                for seq in (1, 17, 18, 200):
                    await there.jetstream().delete_msg("ORDERS", seq)
                await make_mirror(here, 1)
                await caught_up(here, COUNT)
                await same(there, here, COUNT)
                await api_create(here, "SOME", "mirror", {"filter_subject": "orders.3"})
                renamed = {"subject_transforms": [{"src": "orders.4", "dest": "new.four"}]}
                await api_create(here, "RENAMED", "sources", renamed)
                await api_create(here, "LATE", "sources", {"opt_start_seq": 150})
                some, four, late = (range(3, COUNT, 5), range(4, COUNT, 5), range(150, COUNT + 1))
                await messages(here, "SOME", [(seq, "orders.3") for seq in some if seq != 18])
                await messages(here, "RENAMED", [(seq, "new.four") for seq in four])
                kept = [(seq, f"orders.{seq % 5}") for seq in late if seq != 200]
                await messages(here, "LATE", kept)
                await fill(there, COUNT + 1, COUNT + 20)  # the consumer continues after the blocks
                await caught_up(here, COUNT + 20)
                await same(there, here, COUNT + 20)
                await asyncio.gather(there.close(), here.close())

            run(work)
        log = near.nodes[0].log_path.read_text()
        assert log.count("in blocks, sequences") == 4, log
        assert "by consumer" not in log


async def api_create(client: Any, name: str, kind: str, more: dict[str, Any]) -> None:
    origin = {"name": "ORDERS", "external": {"api": "$JS.far.API", "deliver": ""}} | more
    config = {"name": name, kind: origin if kind == "mirror" else [origin]}
    answer = await client.request(f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode())
    assert "error" not in json.loads(answer.data), answer.data


async def messages(client: Any, stream: str, wanted: list[tuple[int, str]]) -> None:
    """The stream holds exactly these: sequence of the origin (it is in the payload), subject."""

    async def check() -> bool:
        info = await client.jetstream().stream_info(stream)
        return bool(info.state.messages == len(wanted))

    await eventually(check, f"{len(wanted)} messages in {stream}")
    first = (await client.jetstream().stream_info(stream)).state.first_seq
    found, seq = [], first
    while len(found) < len(wanted):
        message = await stored(client, stream, seq)
        if message is not None:
            number = int(base64.b64decode(message["data"]).split()[1])
            found.append((number, message["subject"]))
        seq += 1
    assert found == wanted
