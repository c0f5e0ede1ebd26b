"""Storage limits of accounts and servers: refused and counted as by nats-server."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.config.options import AccountStore, JetStreamOptions
from broker.local import LocalCluster
from tests.support.clients import open_client
from tests.support.clusters import connect, eventually, leader_of, nats_server, run
from tests.support.interop import api
from tests.support.server import running

NUMBERS = ("memory", "storage", "reserved_memory", "reserved_storage", "streams", "limits")
ACCOUNTS = """
accounts { A { jetstream { max_mem: 1000, max_file: 2000 }, users [ { user: a, password: a } ] } }
no_auth_user: a
"""

Script = Callable[[Any], Awaitable[list[Any]]]


def outcome(answer: dict[str, Any]) -> Any:
    return answer.get("error") or answer.get("seq") or answer.get("state", {}).get("bytes")


async def add(client: Any, name: str, **config: Any) -> Any:
    body = {"name": name, "subjects": [f"{name}.>"], **config}
    return outcome(await api(client, f"STREAM.CREATE.{name}", body))


async def pub(client: Any, name: str, *sizes: int, **headers: str) -> list[Any]:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    answers = []
    for size in sizes:
        answer = await client.request(f"{name}.a", b"x" * size, timeout=10, headers=named or None)
        answers.append(outcome(json.loads(answer.data)))
    return answers


async def info(client: Any) -> dict[str, Any]:
    found = await api(client, "INFO")
    return {name: found[name] for name in NUMBERS}


async def of_an_account(client: Any) -> list[Any]:
    return [
        await add(client, "BIGM", storage="memory", max_bytes=1001),
        await add(client, "BIGF", max_bytes=2001),
        await add(client, "M", storage="memory"),
        await pub(client, "M", 400, 400, 400, 100, 10, 0),
        await info(client),
        await add(client, "F"),
        await pub(client, "F", 500, 500, 500, 500, 500),
        await info(client),
        await add(client, "I", retention="interest"),
        await pub(client, "I", 500, 5000),
        await add(client, "B", max_bytes=500),
        await add(client, "BB", max_bytes=1600),
        await add(client, "X", allow_atomic=True, allow_msg_ttl=True),
        await pub(client, "X", 500),
        await pub(client, "X", 500, Nats_TTL="bad"),
        await pub(client, "X", 500, Nats_Msg_Id="1"),
        await pub(client, "X", 500, Nats_Expected_Last_Sequence="9"),
        await pub(client, "X", 500, Nats_Batch_Id="1", Nats_Batch_Sequence="1"),
        await info(client),
        (await api(client, "STREAM.MSG.DELETE.F", {"seq": 1}))["success"],
        await pub(client, "F", 500, 400),
        await pub(client, "X", 300),
        (await api(client, "STREAM.DELETE.F"))["success"],
        await pub(client, "X", 400),
        await info(client),
    ]


async def of_a_server(client: Any) -> list[Any]:
    return [
        await add(client, "M", storage="memory"),
        await pub(client, "M", 1500, 1500, 1500, 1500, 1500, 0),
        await add(client, "M2", storage="memory"),
        await pub(client, "M2", 0),
        await add(client, "I", storage="memory", retention="interest"),
        await pub(client, "I", 0),
        await pub(client, "I", 0, Nats_Expected_Last_Sequence="9"),
        await pub(client, "I", 0, Nats_TTL="9"),
        await add(client, "F"),
        await pub(client, "F", 1500, 1500, 1500, 1500, 1500),
        await info(client),
        (await api(client, "STREAM.PURGE.M"))["purged"],
        await pub(client, "M", 1),
        await info(client),
    ]


async def real(place: Path, script: Script, *, more: str, jetstream: str = "") -> list[Any]:
    cluster = LocalCluster(
        place / "real", size=1, name="real", command=nats_server(), jetstream=jetstream
    )
    cluster.prepare()
    [config] = cluster.nodes[0].directory.glob("*.conf")
    config.write_text(config.read_text() + more)
    with cluster:
        client = await connect(*cluster.nodes)
        answers = await script(client)
        await client.close()
    return answers


async def ours(place: Path, script: Script, jetstream: JetStreamOptions) -> list[Any]:
    async with running(jetstream=jetstream) as server:
        client = await open_client(f"nats://127.0.0.1:{server.port}")
        answers = await script(client)
        await client.close()
    return answers


def test_an_account_over_its_limits_is_refused_as_by_nats_server(tmp_path: Path) -> None:
    async def work() -> None:
        granted = {"$G": AccountStore(max_memory=1000, max_storage=2000)}
        options = JetStreamOptions(store_dir=str(tmp_path / "ours"), accounts=granted)
        found = await ours(tmp_path, of_an_account, options)
        assert found == await real(tmp_path, of_an_account, more=ACCOUNTS)

    run(work)


def test_a_server_is_full_at_the_same_point_as_nats_server(tmp_path: Path) -> None:
    async def work() -> None:
        options = JetStreamOptions(
            store_dir=str(tmp_path / "ours"), max_memory_store=4000, max_file_store=6000
        )
        found = await ours(tmp_path, of_a_server, options)
        limits = "max_mem: 4000, max_file: 6000"
        assert found == await real(tmp_path, of_a_server, more="", jetstream=limits)

    run(work)


async def without_a_limit(client: Any) -> list[Any]:
    """A stream in memory and one in files, with and without max_bytes."""
    found = []
    for name, more in (("M", {"storage": "memory"}), ("F", {}), ("B", {"max_bytes": 5000})):
        made = await api(
            client, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], **more}
        )
        found.append(made.get("error", {}).get("err_code"))
        found += await pub(client, name, 1) if "error" not in made else []
    return found


@pytest.mark.parametrize(
    "limits", [{"max_mem": -1}, {"max_mem": -1, "max_file": -1}, {"max_mem": 0, "max_file": 10000}]
)
def test_limits_of_the_machine_and_of_nothing_are_as_in_nats_server(
    tmp_path: Path, limits: dict[str, int]
) -> None:
    async def work() -> None:
        options = JetStreamOptions(
            store_dir=str(tmp_path / "ours"),
            max_memory_store=limits["max_mem"],
            max_file_store=limits.get("max_file"),
        )
        found = await ours(tmp_path, without_a_limit, options)
        text = ", ".join(f"{key}: {value}" for key, value in limits.items())
        assert found == await real(tmp_path, without_a_limit, more="", jetstream=text)
        assert len(found) >= 5

    run(work)


def test_a_full_server_loses_nothing_and_accepts_more_after_a_purge(tmp_path: Path) -> None:
    """Three replicas, publishers that do not wait, and a limit reached in the middle of a batch."""

    async def work(cluster: LocalCluster) -> None:
        client = await connect(*cluster.nodes)
        fields = {"name": "F", "subjects": ["f.>"], "num_replicas": 3}
        await api(client, "STREAM.CREATE.F", fields)
        inbox = await client.subscribe("acks.*")
        for i in range(400):
            await client.publish("f.x", b"%04d" % i + bytes(996), reply=f"acks.{i}")
        answers = [await inbox.next_msg(timeout=30) for _ in range(400)]
        acked = {}
        for answer in answers:
            body, number = json.loads(answer.data), int(answer.subject.rsplit(".", 1)[1])
            if "error" in body:
                assert body["error"]["err_code"] == 10023
            else:
                acked[body["seq"]] = number
        assert sorted(acked) == list(range(1, len(acked) + 1))
        assert 0 < len(acked) < 400
        for seq in (1, len(acked)):
            message = (await api(client, "STREAM.MSG.GET.F", {"seq": seq}))["message"]
            assert message["data"], "an acked message is stored"
        assert (await api(client, "STREAM.INFO.F"))["state"]["messages"] == len(acked)
        before = await leader_of(client, cluster, "F")
        await api(client, "STREAM.LEADER.STEPDOWN.F")

        async def moved() -> bool:
            return (await leader_of(client, cluster, "F")).name != before.name

        await eventually(moved, "another leader")
        assert (await pub(client, "f", 1))[0]["err_code"] == 10023, (
            "the next leader enforces it too"
        )
        await api(client, "STREAM.PURGE.F")
        assert (await pub(client, "f", 1)) == [len(acked) + 1]
        await client.close()

    limits = "max_file: 200000, max_mem: 100000"
    with LocalCluster(tmp_path, size=3, name="full", jetstream=limits) as cluster:
        run(lambda: work(cluster))
