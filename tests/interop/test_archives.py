"""Archives of nats-server are restored here, and ours there: messages, gaps and consumers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import open_client
from tests.support.clusters import nats_server, run
from tests.support.server import Process

OURS = [sys.executable, "-m", "broker", "serve"]
COUNT = 400


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    with ExitStack() as stack:
        found = {}
        for name, command in (("ours", OURS), ("theirs", nats_server())):
            place: Path = tmp_path_factory.mktemp(name)
            words = ("-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(place))
            found[name] = stack.enter_context(Process(*words, command=command)).port
        yield found


async def api(client: Any, request: str, body: object = None) -> Any:
    payload = b"" if body is None else json.dumps(body).encode()
    answer = json.loads((await client.request(f"$JS.API.{request}", payload, timeout=10)).data)
    assert "error" not in answer, (request, answer["error"])
    return answer


async def fill(client: Any, stream: str, config: dict[str, Any]) -> None:
    await api(
        client, f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{stream}.*"]} | config
    )
    for i in range(1, COUNT + 1):
        headers = {"A": "b", "Nats-Msg-Id": f"id{i}"} if i % 3 == 0 else None
        body = b"order %d " % i * (i % 40)
        await client.jetstream().publish(f"{stream}.{i % 5}", body, headers=headers)
    await api(client, f"STREAM.PURGE.{stream}", {"seq": 4})
    for seq in (7, 8, COUNT):  # the last one too
        await api(client, f"STREAM.MSG.DELETE.{stream}", {"seq": seq})
    consumer = {"durable_name": "c", "name": "c", "ack_policy": "explicit"}
    consumer["filter_subject"] = f"{stream}.2"
    await api(client, f"CONSUMER.CREATE.{stream}.c", {"stream_name": stream, "config": consumer})
    pulled = await client.jetstream().pull_subscribe_bind("c", stream)
    for number, message in enumerate(await pulled.fetch(10)):
        if number not in (3, 5):
            await message.ack_sync()


async def archive(client: Any, stream: str) -> tuple[dict[str, Any], bytes]:
    chunks: list[bytes] = []
    done = asyncio.Event()

    async def received(message: Any) -> None:
        if message.data:
            chunks.append(message.data)
            if message.reply:
                await client.publish(message.reply, b"")
        else:
            done.set()

    inbox = client.new_inbox()
    await client.subscribe(inbox, cb=received)
    answer = await api(
        client, f"STREAM.SNAPSHOT.{stream}", {"deliver_subject": inbox, "chunk_size": 4096}
    )
    await asyncio.wait_for(done.wait(), 20)
    return {"config": answer["config"], "state": answer["state"]}, b"".join(chunks)


async def restore(client: Any, stream: str, head: dict[str, Any], data: bytes) -> Any:
    answer = await api(client, f"STREAM.RESTORE.{stream}", head)
    for at in range(0, len(data), 65536):
        reply = await client.request(answer["deliver_subject"], data[at : at + 65536], timeout=20)
        assert not reply.data, reply.data
    reply = await client.request(answer["deliver_subject"], b"", timeout=20)
    return json.loads(reply.data)


async def content(client: Any, stream: str) -> Any:
    """Everything that a client can see of it."""
    state = (await api(client, f"STREAM.INFO.{stream}"))["state"]
    messages = []
    for seq in range(1, COUNT + 1):
        body = json.dumps({"seq": seq}).encode()
        answer = await client.request(f"$JS.API.STREAM.MSG.GET.{stream}", body, timeout=10)
        messages.append(json.loads(answer.data).get("message"))
    consumer = await api(client, f"CONSUMER.INFO.{stream}.c")
    position = {
        key: {k: v for k, v in consumer[key].items() if k != "last_active"}
        for key in ("delivered", "ack_floor")
    }
    counts = [consumer[key] for key in ("num_ack_pending", "num_pending")]
    names = ("messages", "bytes", "first_seq", "last_seq", "num_deleted", "first_ts", "last_ts")
    return [state.get(name) for name in names], messages, position, counts


@pytest.mark.parametrize("compression", ["none", "s2"])
@pytest.mark.parametrize("way", [("theirs", "ours"), ("ours", "theirs"), ("ours", "ours")])
def test_a_stream_moves_by_backup_and_restore(
    ports: dict[str, int], way: tuple[str, str], compression: str
) -> None:
    stream = f"S-{way[0]}-{way[1]}-{compression}"

    async def work() -> None:
        here = await open_client(f"nats://127.0.0.1:{ports[way[0]]}")
        there = await open_client(f"nats://127.0.0.1:{ports[way[1]]}")
        await fill(here, stream, {"compression": compression})
        before = await content(here, stream)
        head, data = await archive(here, stream)
        if way[0] == way[1]:
            await api(here, f"STREAM.DELETE.{stream}")
        answer = await restore(there, stream, head, data)
        assert "error" not in answer, answer
        after = await content(there, stream)
        if way[1] == "theirs":
            after[0][-1] = before[0][-1]  # it takes the time of the last message that is there
        assert after == before
        if way[1] == "ours":  # nats-server forgets message ids at a restore, also at its own
            headers = {"Nats-Msg-Id": f"id{COUNT - COUNT % 3}"}
            again = await there.jetstream().publish(f"{stream}.1", b"again", headers=headers)
            assert again.duplicate
        await there.jetstream().publish(f"{stream}.2", b"new")
        pulled = await there.jetstream().pull_subscribe_bind("c", stream)
        assert await pulled.fetch(1)
        await here.close()
        await there.close()

    run(work)


def test_a_damaged_archive_of_nats_server_creates_nothing(ports: dict[str, int]) -> None:
    async def work() -> None:
        there = await open_client(f"nats://127.0.0.1:{ports['theirs']}")
        here = await open_client(f"nats://127.0.0.1:{ports['ours']}")
        await fill(there, "DAMAGED", {})
        head, data = await archive(there, "DAMAGED")
        for damaged in (data[:-40], data[:300] + b"\1" + data[301:], data[:10] + data[40:]):
            answer = await restore(here, "DAMAGED", head, damaged)
            assert "error" in answer
        streams = await api(here, "STREAM.NAMES")
        assert "DAMAGED" not in (streams["streams"] or [])
        await here.close()
        await there.close()

    run(work)
