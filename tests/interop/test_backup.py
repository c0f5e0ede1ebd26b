"""Snapshots and restores, through the API and with the command-line tool."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nats.errors
import pytest

from broker.local import LocalCluster
from tests.support.clusters import WITHIN_S, connect, eventually, run
from tests.support.interop import Body, api, check

MESSAGES = 400
TOOL = os.environ.get("NATS_CLI") or shutil.which("nats")


async def filled(client: Any, name: str, *, replicas: int = 3, **config: object) -> Body:
    """A stream with gaps, headers, message ids and a consumer that has read a part of it."""
    await api(client, f"STREAM.DELETE.{name}")
    body = {"name": name, "subjects": [f"{name}.>"], "num_replicas": replicas, **config}
    made = await api(client, f"STREAM.CREATE.{name}", body)
    assert "error" not in made, made
    stream = client.jetstream()
    for i in range(MESSAGES):
        headers = {"Nats-Msg-Id": f"id-{i}"} if i % 50 == 0 else None
        await stream.publish(f"{name}.{i % 7}", b"%d " % i * 300, headers=headers)
    for seq in (3, 4, 77, MESSAGES):
        await api(client, f"STREAM.MSG.DELETE.{name}", {"seq": seq})
    pull = {"durable_name": "C", "ack_policy": "explicit", "ack_wait": 1_000_000_000}
    await api(client, f"CONSUMER.DURABLE.CREATE.{name}.C", {"stream_name": name, "config": pull})
    got = await (await stream.pull_subscribe_bind("C", stream=name)).fetch(10)
    for message in got[:5]:
        await message.ack_sync()
    return await api(client, f"STREAM.INFO.{name}", {"deleted_details": True})


async def snapshot(client: Any, name: str, *, chunk_size: int = 4096) -> tuple[bytes, Body]:
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    request = {"deliver_subject": inbox, "chunk_size": chunk_size, "window_size": 4 * chunk_size}
    answer = await api(client, f"STREAM.SNAPSHOT.{name}", request)
    check(answer)
    chunks: list[bytes] = []
    while True:
        message = await subscription.next_msg(timeout=20)
        if not message.data:
            full = any(len(chunk) == chunk_size for chunk in chunks)
            assert message.headers == ({"Status": "204"} if full else None)
            return b"".join(chunks), answer
        chunks.append(message.data)
        if message.reply:
            assert len(message.data) == chunk_size
            assert message.reply.endswith(f".{chunk_size}.{len(chunks)}")
            await client.publish(message.reply, b"")


async def restore(client: Any, name: str, archive: bytes, config: Body) -> Body:
    answer = await api(client, f"STREAM.RESTORE.{name}", {"config": config, "state": {}})
    check(answer)
    if "error" in answer:
        return answer
    for at in range(0, len(archive), 9000):
        flow = await client.request(answer["deliver_subject"], archive[at : at + 9000], timeout=10)
        assert flow.data == b""
    end = await client.request(answer["deliver_subject"], b"", timeout=30)
    parsed: Body = json.loads(end.data)
    check(parsed)
    return parsed


def same(one: Body, other: Body) -> None:
    for part in ("config", "state"):
        assert one[part] == other[part]


def test_a_restored_stream_equals_the_saved_one(three: LocalCluster) -> None:
    async def work() -> None:
        clients = [await connect(node) for node in three.nodes]
        before = await filled(clients[0], "SAVED")
        consumer = await api(clients[0], "CONSUMER.INFO.SAVED.C")
        archive, answer = await snapshot(clients[1], "SAVED")
        assert answer["state"]["messages"] == before["state"]["messages"]
        await api(clients[0], "STREAM.DELETE.SAVED")
        made = await restore(clients[2], "SAVED", archive, answer["config"])
        assert "error" not in made
        after = await api(clients[0], "STREAM.INFO.SAVED", {"deleted_details": True})
        same(before, after)
        again = await api(clients[0], "CONSUMER.INFO.SAVED.C")
        for number in ("delivered", "ack_floor", "num_ack_pending", "num_pending"):
            assert again[number] == consumer[number], number
        repeated = (
            await clients[0].jetstream().publish("SAVED.x", b"", headers={"Nats-Msg-Id": "id-50"})
        )
        assert (repeated.duplicate, repeated.seq) == (True, 51)
        ack = await clients[0].jetstream().publish("SAVED.x", b"new")
        assert ack.seq == MESSAGES + 1

        async def alike() -> bool:
            states = []
            for node in three.nodes:
                (account,) = node.http("/jsz?streams=1")["account_details"]  # type: ignore[misc]
                states += [s["state"] for s in account["stream_detail"] if s["name"] == "SAVED"]
            return len(states) == 3 and states[0] == states[1] == states[2]

        await eventually(alike, "three equal replicas")
        for client in clients:
            await client.close()

    run(work)


def test_a_failed_restore_leaves_no_stream_behind(three: LocalCluster) -> None:
    async def work() -> None:
        client = await connect(*three.nodes)
        await filled(client, "ONCE")
        archive, answer = await snapshot(client, "ONCE", chunk_size=100_000)
        config = answer["config"]
        refused = await restore(client, "ONCE", archive, config)
        assert refused["error"]["err_code"] == 10130
        await api(client, "STREAM.DELETE.ONCE")
        other = config | {"name": "OTHER", "subjects": ["other"]}
        refused = await api(client, "STREAM.RESTORE.ONCE", {"config": other})
        assert refused["error"]["err_code"] == 10056
        damaged = archive[:5000] + bytes((archive[5000] ^ 1,)) + archive[5001:]
        for name, raw in (("ONCE", damaged), ("ONCE", archive[:-10]), ("OTHER", archive)):
            stream = other if name == "OTHER" else config
            failed = await restore(client, name, raw, stream)
            assert failed["error"]["err_code"] == 10062, failed
            assert failed["error"]["description"].startswith("restore failed: ")
        names = await api(client, "STREAM.NAMES", {"subject": "ONCE.>"})
        assert names["streams"] is None
        made = await restore(client, "ONCE", archive, config | {"max_msgs": 10})
        assert made["state"]["messages"] == 10, "a lower limit applies at once"
        await client.close()

    run(work)


async def snapshot_without_interest(client: Any) -> None:
    done = await client.subscribe("$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.UNHEARD")
    await client.flush()
    bad = await api(client, "STREAM.SNAPSHOT.UNHEARD", {"deliver_subject": "a.*"})
    assert bad["error"]["err_code"] == 10015
    await api(client, "STREAM.SNAPSHOT.UNHEARD", {"deliver_subject": "nobody.listens"})
    event = json.loads((await done.next_msg(timeout=WITHIN_S)).data)
    check(event)
    assert "No Interest" in event["error"]


async def snapshot_without_flow_control(client: Any) -> None:
    silent = await client.subscribe("silent")
    request = {"deliver_subject": "silent", "chunk_size": 1024, "window_size": 4096}
    await api(client, "STREAM.SNAPSHOT.UNANSWERED", request)
    seen = [await silent.next_msg(timeout=WITHIN_S) for _ in range(5)]
    assert [len(message.data) for message in seen] == [1024] * 4 + [0], "the window is four"
    assert seen[4].headers["Status"] == "408"
    assert seen[4].headers["Description"] == "No Flow Response"


async def restore_without_an_end(client: Any) -> None:
    done = await client.subscribe("$JS.EVENT.ADVISORY.STREAM.RESTORE_COMPLETE.GONE")
    await client.flush()
    body = {"config": {"name": "GONE", "subjects": ["gone"]}}
    answer = await api(client, "STREAM.RESTORE.GONE", body)
    await client.request(answer["deliver_subject"], b"something", timeout=10)
    event = json.loads((await done.next_msg(timeout=WITHIN_S)).data)
    check(event)
    assert event["bytes"] == 9
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request(answer["deliver_subject"], b"more", timeout=10)
    names = await api(client, "STREAM.NAMES", {"subject": "gone"})
    assert names["streams"] is None


def test_snapshots_and_restores_of_clients_that_stopped_answering_end(
    three: LocalCluster,
) -> None:
    """Side by side, because each of them waits for a timeout of the server."""

    async def work() -> None:
        client = await connect(*three.nodes)
        for name in ("UNHEARD", "UNANSWERED"):
            await filled(client, name, replicas=1)
        async with asyncio.TaskGroup() as group:
            group.create_task(snapshot_without_interest(client))
            group.create_task(snapshot_without_flow_control(client))
            group.create_task(restore_without_an_end(client))
        await client.close()

    run(work)


def test_the_tool_saves_and_restores(three: LocalCluster, tmp_path: Path) -> None:
    if TOOL is None:
        pytest.skip("the nats command-line tool is not installed")

    async def call(*words: str) -> str:
        server = ["-s", three.nodes[1].url]
        done = await asyncio.to_thread(
            subprocess.run, [TOOL, *server, "stream", *words], capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    async def work() -> None:
        client = await connect(*three.nodes)
        before = await filled(client, "TOOL")
        await call("backup", "TOOL", str(tmp_path / "saved"))
        await call("rm", "TOOL", "-f")
        await call("restore", str(tmp_path / "saved"))
        same(before, await api(client, "STREAM.INFO.TOOL", {"deleted_details": True}))
        await client.close()

    run(work)
