"""A server with a domain and limits: the API under both prefixes, buckets, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.local import LocalCluster
from tests.support.clusters import connect, run
from tests.support.interop import api, check

LIMITS = 'limits { max_request_batch: 50, max_ack_pending: 500, duplicate_window: "1m" }'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    place: Path = tmp_path_factory.mktemp("domains")
    settings = f"domain: hub, max_file_store: 20M, max_memory_store: 10M, {LIMITS}"
    with LocalCluster(place, size=1, name="dom", jetstream=settings) as running:
        yield running


def test_the_api_answers_under_the_domain_too(server: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*server.nodes)
        config = {"name": "KV_B", "subjects": ["$KV.B.>"], "max_msgs_per_subject": 3}
        made = await api(client, "STREAM.CREATE.KV_B", config, prefix="$JS.hub.API.")
        assert made["domain"] == "hub"
        assert (await api(client, "STREAM.INFO.KV_B"))["domain"] == "hub"
        info = await api(client, "INFO", prefix="$JS.hub.API.")
        check(info)
        assert info["domain"] == "hub"
        ack = json.loads((await client.request("$KV.B.key", b"1", timeout=10)).data)
        assert ack == {"stream": "KV_B", "seq": 1, "domain": "hub"}
        ack = json.loads((await client.request("$JS.hub.API.$KV.B.key", b"2", timeout=10)).data)
        assert ack == {"stream": "KV_B", "seq": 2, "domain": "hub"}
        found = await api(client, "STREAM.MSG.GET.KV_B", {"last_by_subj": "$KV.B.key"})
        assert found["message"]["seq"] == 2
        pull = {"stream_name": "KV_B", "config": {"name": "C", "ack_policy": "explicit"}}
        await api(client, "CONSUMER.CREATE.KV_B.C", pull, prefix="$JS.hub.API.")
        subject = "$JS.hub.API.CONSUMER.MSG.NEXT.KV_B.C"
        inbox = await client.subscribe("pulled")
        await client.publish(subject, b"", reply="pulled")
        assert (await inbox.next_msg(timeout=10)).data == b"1"
        deleted = await client.subscribe("$JS.EVENT.ADVISORY.STREAM.DELETED.KV_B")
        await client.flush()
        await api(client, "STREAM.DELETE.KV_B", prefix="$JS.hub.API.")
        assert json.loads((await deleted.next_msg(timeout=10)).data)["domain"] == "hub"
        await client.close()

    run(work)


def test_reservations_do_not_exceed_the_limits_of_the_server(server: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*server.nodes)

        async def refusal(name: str, **config: object) -> int:
            body = {"name": name, "subjects": [f"{name}.>"], **config}
            answer = await api(client, f"STREAM.CREATE.{name}", body)
            check(answer)
            return int(answer.get("error", {}).get("err_code", 0))

        assert await refusal("F1", max_bytes=12_000_000) == 0
        assert await refusal("F2", max_bytes=12_000_000) == 10047
        assert await refusal("F2", max_bytes=8_000_000) == 0
        assert await refusal("F3") == 0, "without max_bytes nothing is reserved"
        assert await refusal("M1", max_bytes=11_000_000, storage="memory") == 10028
        assert await refusal("D1", duplicate_window=61_000_000_000) == 10052
        info = await api(client, "INFO")
        assert (info["reserved_storage"], info["reserved_memory"]) == (20_000_000, 0)
        assert info["streams"] == 3
        await client.close()

    run(work)


def test_consumers_are_subject_to_the_limits_of_the_server(server: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*server.nodes)
        await api(client, "STREAM.CREATE.L", {"name": "L", "subjects": ["l.>"]})

        async def create(**config: object) -> dict[str, object]:
            body = {"stream_name": "L", "config": {"ack_policy": "explicit", **config}}
            return await api(client, "CONSUMER.CREATE.L", body)

        made = (await create())["config"]
        assert isinstance(made, dict)
        assert (made["max_ack_pending"], made["max_batch"]) == (500, 50)
        refused = [await create(max_ack_pending=501), await create(max_batch=51)]
        codes = [answer["error"]["err_code"] for answer in refused]  # type: ignore[index]
        assert codes == [10121, 10125]
        await client.close()

    run(work)
