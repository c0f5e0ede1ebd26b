"""Sources and mirrors that read through a durable consumer that exists already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.local import LocalCluster
from tests.e2e.test_sources import api, content, fill, holds
from tests.support.clusters import connect, eventually, nats_server, run

CONSUMER = {"name": "D", "deliver_subject": "carried"}
DURABLE = {
    "durable_name": "D", "deliver_subject": "carried", "ack_policy": "flow_control",
    "flow_control": True, "idle_heartbeat": 1_000_000_000, "max_deliver": -1, "max_ack_pending": 16,
}  # fmt: skip


async def make_origin(client: Any, retention: str) -> None:
    body = {"name": "W", "subjects": ["w.*"], "retention": retention}
    assert "error" not in await api(client, "STREAM.CREATE.W", body)
    made = await api(client, "CONSUMER.DURABLE.CREATE.W.D", {"stream_name": "W", "config": DURABLE})
    assert "error" not in made, made


async def emptied(client: Any) -> None:
    async def check() -> bool:
        return bool((await api(client, "STREAM.INFO.W"))["state"]["messages"] == 0)

    await eventually(check, "the origin to remove what was copied")


@pytest.mark.parametrize("far_is_ours", [True, False])
def test_a_work_queue_is_copied_exactly_and_emptied(tmp_path: Path, *, far_is_ours: bool) -> None:
    command = {} if far_is_ours else {"command": nats_server()}
    with LocalCluster(tmp_path / "far", size=1, name="far", **command) as far:  # type: ignore[arg-type]
        remote = f'remotes {{ far {{ urls: ["{far.urls[0]}"] }} }}'
        with LocalCluster(tmp_path / "near", size=1, name="near", jetstream=remote) as near:

            async def first() -> None:
                there, here = await connect(*far.nodes), await connect(*near.nodes)
                await make_origin(there, "workqueue")
                await fill(there, "w", 1, 60)
                source = {"name": "W", "external": {"api": "$JS.far.API"}, "consumer": CONSUMER}
                made = await api(here, "STREAM.CREATE.S", {"name": "S", "sources": [source]})
                assert made["config"]["sources"][0]["consumer"] == CONSUMER
                await holds(here, "S", 60)
                await emptied(there)
                await fill(there, "w", 61, 80)
                await there.close()
                await here.close()

            run(first)
            near.nodes[0].kill()

            async def filled() -> None:
                there = await connect(*far.nodes)
                await fill(there, "w", 81, 120)
                await there.close()

            run(filled)
            near.nodes[0].start()
            near.nodes[0].wait_healthy()

            async def second() -> None:
                there, here = await connect(*far.nodes), await connect(*near.nodes)
                await holds(here, "S", 120)
                await emptied(there)
                found = await content(here, "S", 120)
                assert [data for _, data, _ in found] == [b"w %d" % i for i in range(1, 121)]
                assert [int(source.split()[1]) for _, _, source in found] == list(range(1, 121))
                await there.close()
                await here.close()

            run(second)


def test_a_mirror_through_a_durable_consumer_keeps_sequences(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, size=1, name="one") as server:

        async def work() -> None:
            client = await connect(*server.nodes)
            await make_origin(client, "interest")
            await fill(client, "w", 1, 40)
            mirror = {"name": "W", "consumer": CONSUMER}
            made = await api(client, "STREAM.CREATE.M", {"name": "M", "mirror": mirror})
            assert made["config"]["mirror"]["consumer"] == CONSUMER
            await holds(client, "M", 40)
            await emptied(client)
            assert [data for _, data, _ in await content(client, "M", 40)] == [
                b"w %d" % i for i in range(1, 41)
            ]
            await client.close()

        run(work)


@pytest.mark.parametrize(("kind", "err_code"), [("sources", 10217), ("mirror", 10214)])
def test_another_ack_policy_is_reported_in_the_info(
    tmp_path: Path, kind: str, err_code: int
) -> None:
    with LocalCluster(tmp_path, size=1, name="one") as server:

        async def work() -> None:
            client = await connect(*server.nodes)
            await api(client, "STREAM.CREATE.W", {"name": "W", "subjects": ["w.*"]})
            config = {"durable_name": "D", "deliver_subject": "carried", "ack_policy": "explicit"}
            made = await api(
                client, "CONSUMER.DURABLE.CREATE.W.D", {"stream_name": "W", "config": config}
            )
            assert "error" not in made
            source = {"name": "W", "consumer": CONSUMER}
            body = {"name": "S", kind: [source] if kind == "sources" else source}
            assert "error" not in await api(client, "STREAM.CREATE.S", body)

            async def reported() -> bool:
                info = (await api(client, "STREAM.INFO.S"))[kind]
                entry = info[0] if kind == "sources" else info
                return bool(entry.get("error", {}).get("err_code") == err_code)

            await eventually(reported, "the error of the wrong consumer")
            await client.close()

        run(work)
