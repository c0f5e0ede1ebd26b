"""What restores may take of a node: threads, memory and slots are shared with other accounts."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import broker.cluster.api.restore as restoring
from broker.cluster.api.backup import SNAPSHOTS_PER_ACCOUNT_MAX
from broker.cluster.meta.assignments import AssignStream
from broker.cluster.meta.meta_requests import MetaRequests
from broker.config.load import load, parse_flags
from broker.jetstream.stream import archive
from tests.support.clients import open_client
from tests.support.interop import api
from tests.support.server import run, running_broker

ZEROS = bytes(100_000)
MESSAGES = 120  # 12 MB, in an archive of a few kilobytes


@asynccontextmanager
async def two_accounts(directory: Path) -> AsyncIterator[tuple[Any, Any]]:
    """Clients of two accounts."""
    path = directory / "server.conf"
    path.write_text(
        f"""
        listen: "127.0.0.1:-1", jetstream {{ store_dir: "{directory}" }}
        accounts {{
          A {{ users: [{{ user: a, password: pw }}], jetstream: enabled }}
          B {{ users: [{{ user: b, password: pw }}], jetstream: enabled }}
        }}"""
    )
    options = load(parse_flags(["-c", str(path)])).options
    async with running_broker(options) as node:
        clients: list[Any] = []
        try:
            for name in "ab":
                url = f"nats://{name}:pw@127.0.0.1:{node.server.port}"
                clients.append(await open_client(url))
            yield clients[0], clients[1]
        finally:
            for client in clients:
                await client.close()


async def small_archive(client: Any) -> bytes:
    await api(client, "STREAM.CREATE.Z", {"name": "Z", "subjects": ["z"]})
    for _ in range(MESSAGES):
        await client.jetstream().publish("z", ZEROS)
    inbox = client.new_inbox()
    chunks = await client.subscribe(inbox)
    await api(client, "STREAM.SNAPSHOT.Z", {"deliver_subject": inbox, "chunk_size": 1 << 20})
    found = b""
    while (message := await chunks.next_msg(timeout=20)).data:
        found += message.data
        if message.reply:
            await client.publish(message.reply, b"")
    await api(client, "STREAM.DELETE.Z")
    assert len(found) < MESSAGES * len(ZEROS) // 10
    return found


async def begin(client: Any, name: str) -> Any:
    return await api(client, f"STREAM.RESTORE.{name}", {"config": {"name": name}, "state": {}})


async def restore(client: Any, name: str, content: bytes) -> Any:
    subject = (await begin(client, name))["deliver_subject"]
    await client.request(subject, content, timeout=20)
    return json.loads((await client.request(subject, b"", timeout=20)).data)


def test_few_parts_are_inflated_at_once_and_none_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop: list[int] = []
    at_once: list[int] = []
    inflate, lock, running = archive.s2.decompress, threading.Lock(), 0

    def watched(content: bytes) -> bytes:
        nonlocal running
        if threading.current_thread() is threading.main_thread():
            on_loop.append(len(content))
        with lock:
            running += 1
            at_once.append(running)
        try:
            return inflate(content)
        finally:
            with lock:
                running -= 1

    async def work() -> None:
        async with two_accounts(tmp_path) as (a, b):
            content = await small_archive(a)
            monkeypatch.setattr(archive.s2, "decompress", watched)
            answers = await asyncio.gather(
                *(restore(client, "Z", content) for client in (a, b)),
            )
            assert [answer["state"]["messages"] for answer in answers] == [MESSAGES] * 2

    run(work())
    assert at_once
    assert not on_loop
    assert max(at_once) <= restoring.INFLATING_MAX


def test_an_account_has_one_part_in_memory_whatever_it_restores(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_accounts(tmp_path) as (a, _b):
            held = 0
            most = 0
            owner = restoring.Restores.inflating

            @asynccontextmanager
            async def counted(self: restoring.Restores, account: str) -> AsyncIterator[None]:
                nonlocal held, most
                async with owner(self, account):
                    held += 1
                    most = max(most, held)
                    yield
                    held -= 1

            content = await small_archive(a)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(restoring.Restores, "inflating", counted)
                answers = await asyncio.gather(*(restore(a, "Z", content) for _ in range(3)))
            assert sum("error" not in answer for answer in answers) == 1, "one name, one stream"
            assert most == 1

    run(work())


def test_of_two_restores_of_one_name_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that there is no such stream. Otherwise both would fill the same one."""
    both, change = asyncio.Barrier(2), MetaRequests.change

    async def changed_together(self: MetaRequests, command: Any) -> Any:
        if isinstance(command, AssignStream) and command.config.name == "Z":
            await both.wait()
        return await change(self, command)

    async def work() -> None:
        async with two_accounts(tmp_path) as (a, _b):
            content = await small_archive(a)
            monkeypatch.setattr(MetaRequests, "change", changed_together)
            answers = await asyncio.gather(*(restore(a, "Z", content) for _ in range(2)))
            codes = [answer["error"]["err_code"] for answer in answers if "error" in answer]
            assert codes == [10130]

    run(work())


def test_an_account_leaves_restores_to_others(tmp_path: Path) -> None:
    async def work() -> None:
        async with two_accounts(tmp_path) as (a, b):
            begun = [await begin(a, f"S{i}") for i in range(restoring.RESTORES_PER_ACCOUNT_MAX + 3)]
            refused = [one["error"]["err_code"] for one in begun if "error" in one]
            assert refused == [10062] * 3
            assert "deliver_subject" in await begin(b, "S")

    run(work())


def test_a_client_that_does_not_wait_for_answers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "UNSPOOLED_BYTES_MAX", 10 * len(ZEROS))

    async def work() -> None:
        async with two_accounts(tmp_path) as (a, _b):
            subject = (await begin(a, "Z"))["deliver_subject"]
            inbox = a.new_inbox()
            answers = await a.subscribe(inbox)
            for _ in range(100):
                await a.publish(subject, ZEROS, reply=inbox)
            told = b""
            while b"error" not in told:
                told = (await answers.next_msg(timeout=10)).data
            assert "faster than they were answered" in json.loads(told)["error"]["description"]

    run(work())


def test_snapshots_that_nobody_reads_leave_slots_for_other_accounts(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_accounts(tmp_path) as (one, other):
            for client in (one, other):
                created = await api(client, "STREAM.CREATE.Z", {"name": "Z", "subjects": ["z"]})
                assert "error" not in created, created
            body = {"deliver_subject": "nobody.listens"}
            answers = [
                await api(one, "STREAM.SNAPSHOT.Z", body)
                for _ in range(SNAPSHOTS_PER_ACCOUNT_MAX + 1)
            ]
            assert ["error" in answer for answer in answers] == [
                *[False] * SNAPSHOTS_PER_ACCOUNT_MAX,
                True,
            ]
            assert "error" not in await api(other, "STREAM.SNAPSHOT.Z", body)

    run(test())
