"""Accounts, users, imports, mappings and JetStream limits change while the server runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats
import nats.js.errors
import pytest

from broker.config.load import load, parse_flags
from broker.config.options import Options
from broker.main import Broker
from broker.server.process.reload import NotReloadable, merge
from tests.support.clients import open_client
from tests.support.server import PATIENCE, RawClient, run, running_broker

BEFORE = """
accounts {
    A: { users: [{user: a, password: a}], jetstream: enabled
         exports: [{stream: "news.>"}, {service: "ask"}] }
    B: { users: [{user: b, password: b}] }
}
"""


def options(tmp_path: Path, accounts: str, *, jetstream: str = "") -> Options:
    path = tmp_path / "server.conf"
    path.write_text(
        f'listen: "127.0.0.1:-1"\njetstream {{ store_dir: "{tmp_path}", {jetstream} }}\n{accounts}'
    )
    return load(parse_flags(["-c", str(path)])).options


def reload(broker: Broker, wanted: Options) -> None:
    broker.reconfigure(merge(broker.server.options, wanted))


async def connected(broker: Broker, user: str) -> Any:
    url = f"nats://127.0.0.1:{broker.server.port}"
    return await open_client(url, user=user, password=user, allow_reconnect=False)


async def closed(client: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not client.is_closed:
            await asyncio.sleep(0.01)


def test_a_new_tenant_needs_no_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_broker(options(tmp_path, BEFORE)) as broker:
            old = await connected(broker, "a")
            after = BEFORE.replace(
                "B: {", "C: { users: [{user: c, password: c}], jetstream { max_streams: 1 } }\nB: {"
            )
            reload(broker, options(tmp_path, after))
            new = await connected(broker, "c")
            try:
                js = new.jetstream(timeout=PATIENCE)
                await js.add_stream(name="S", subjects=["s"])
                assert (await js.publish("s", b"")).seq == 1
                with pytest.raises(
                    nats.js.errors.BadRequestError, match="maximum number of streams"
                ):
                    await js.add_stream(name="T", subjects=["t"])
                reload(broker, options(tmp_path, after.replace("max_streams: 1", "max_streams: 2")))
                await js.add_stream(name="T", subjects=["t"])
                await old.flush()  # its connection was never closed
                reload(broker, options(tmp_path, BEFORE))
                await closed(new)  # its account is gone
                await old.flush()
            finally:
                await new.close()
                await old.close()

    run(test())


def test_an_account_gets_jetstream_and_loses_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_broker(options(tmp_path, BEFORE)) as broker:
            client = await connected(broker, "b")
            js = client.jetstream(timeout=PATIENCE)
            try:
                for text, enabled in [
                    (BEFORE, False),
                    (BEFORE.replace("B: {", "B: { jetstream: enabled,"), True),
                    (BEFORE, False),
                ]:
                    reload(broker, options(tmp_path, text))
                    if enabled:
                        assert (await js.account_info()).streams == 0
                    else:
                        with pytest.raises(nats.js.errors.APIError) as refused:
                            await js.account_info()
                        assert refused.value.err_code == 10039
            finally:
                await client.close()

    run(test())


IMPORTS = """
    imports: [{stream: {account: A, subject: "news.>"}}, {service: {account: A, subject: ask}}]
    mappings: { please: ask }
"""
IMPORTING = BEFORE.replace("B: {", f"B: {{ {IMPORTS}")


def test_imports_and_mappings_come_and_go(tmp_path: Path) -> None:
    async def heard(broker: Broker) -> tuple[bytes, bytes]:
        """What B gets of A's news, and A of B's request."""
        clients = []
        for user in (b"a", b"b"):
            line = b'CONNECT {"verbose":false,"headers":true,"user":"%b","pass":"%b"}\r\n'
            clients.append(await RawClient.open(broker.server, connect=line % (user, user)))
        a, b = clients
        try:
            b.send(b"SUB news.* 1\r\n")
            a.send(b"SUB ask 1\r\n")
            await b.flush()
            await a.flush()
            a.send(b"PUB news.x 0\r\n\r\n")
            b.send(b"PUB please 0\r\n\r\n")
            await a.flush()
            first = await b.flush()
            return first, await a.flush()
        finally:
            for one in clients:
                one.close()

    async def test() -> None:
        async with running_broker(options(tmp_path, BEFORE)) as broker:
            assert await heard(broker) == (b"", b"")
            for _ in range(2):  # the second time nothing changes
                reload(broker, options(tmp_path, IMPORTING))
                news, asked = await heard(broker)
                assert news.count(b"MSG news.x 1 0\r\n") == 1
                assert asked.count(b"HMSG ask 1") == 1
            reload(broker, options(tmp_path, BEFORE))
            assert await heard(broker) == (b"", b"")

    run(test())


def test_other_jetstream_settings_need_a_restart(tmp_path: Path) -> None:
    before = options(tmp_path, BEFORE)
    with pytest.raises(NotReloadable, match="jetstream"):
        merge(before, options(tmp_path, BEFORE, jetstream="domain: X"))
    with_remote = options(tmp_path, BEFORE, jetstream='remotes { east { urls: ["nats://x"] } }')
    assert merge(before, with_remote) == with_remote
