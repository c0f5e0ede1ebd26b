"""Push consumers that are heard by another account, which imports their deliver subject."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker.config.load import load, parse_flags
from tests.support.clients import open_client
from tests.support.clusters import eventually
from tests.support.interop import api
from tests.support.server import run, running_broker

ACCOUNTS = """
accounts {
  A { jetstream: enabled, users: [{ user: a, password: pw }], exports: [{ stream: "deliver.>" }] }
  B {
    users: [{ user: b, password: pw }]
    imports: [{ stream: { account: A, subject: "deliver.*.x" }, to: "from.*" }]
    exports: [{ stream: "from.>" }]
  }
  C {
    users: [{ user: c, password: pw }]
    imports: [{ stream: { account: B, subject: "from.p" }, to: "far.p" }]
  }
}"""


@asynccontextmanager
async def clients(directory: Path) -> AsyncIterator[list[Any]]:
    path = directory / "server.conf"
    path.write_text(f'listen: "127.0.0.1:-1", jetstream {{ store_dir: "{directory}" }}{ACCOUNTS}')
    async with running_broker(load(parse_flags(["-c", str(path)])).options) as node:
        opened = [await open_client(f"nats://{n}:pw@127.0.0.1:{node.server.port}") for n in "abc"]
        yield opened
        for client in opened:
            await client.close()


async def consumer(owner: Any) -> None:
    await api(owner, "STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"]})
    await owner.jetstream().publish("s.1", b"one")
    config = {"durable_name": "P", "deliver_subject": "deliver.p.x", "ack_policy": "none"}
    made = await api(owner, "CONSUMER.CREATE.S.P", {"stream_name": "S", "config": config})
    assert "error" not in made


async def bound(owner: Any, wanted: bool) -> None:
    async def told() -> bool:
        info = await api(owner, "CONSUMER.INFO.S.P")
        return bool(info.get("push_bound", False)) is wanted

    await eventually(told, f"push_bound is {wanted}")


def test_a_subscriber_behind_an_import_is_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with clients(tmp_path) as (owner, importer, _):
            await consumer(owner)
            await bound(owner, wanted=False)
            heard = await importer.subscribe("from.p")
            message = await heard.next_msg(timeout=10)
            assert (message.subject, message.data) == ("s.1", b"one")
            await bound(owner, wanted=True)
            await heard.unsubscribe()
            await bound(owner, wanted=False)
            await owner.jetstream().publish("s.2", b"two")
            again = await importer.subscribe("from.p")
            assert (await again.next_msg(timeout=10)).data == b"two", "it waited for a subscriber"

    run(work())


def test_an_import_of_an_import_is_followed(tmp_path: Path) -> None:
    async def work() -> None:
        async with clients(tmp_path) as (owner, _, farthest):
            await consumer(owner)
            heard = await farthest.subscribe("far.p")
            assert (await heard.next_msg(timeout=10)).subject == "s.1"
            await bound(owner, wanted=True)

    run(work())


def test_other_subjects_behind_an_import_are_not_subscribers(tmp_path: Path) -> None:
    async def work() -> None:
        async with clients(tmp_path) as (owner, importer, _):
            for other in ("from.q", "deliver.p.x", "from.>"):
                await importer.subscribe(other)
            await importer.flush()
            await consumer(owner)
            await bound(owner, wanted=False)

    run(work())
