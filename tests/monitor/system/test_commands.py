"""Commands to one server: reload, kick and lame duck for a client."""

from __future__ import annotations

import asyncio

import nats.errors
import pytest

from broker.main import Broker
from broker.server.process.tasks import Tasks
from tests.support.server import RawClient, local, run, running, until
from tests.support.system import SETTINGS, ask, client

CONNECT = b'CONNECT {"user":"otto","pass":"pw","verbose":false,"protocol":1,"headers":true}\r\n'


def test_a_client_is_kicked() -> None:
    async def test() -> None:
        async with running(**SETTINGS) as server:
            admin = await client(server)
            kicked = await RawClient.open(server, connect=CONNECT)
            await kicked.flush()
            cid = kicked.info["client_id"]
            order = f"$SYS.REQ.SERVER.{server.id}.KICK"
            done = await ask(admin, order, {"cid": cid})
            assert set(done) == {"server"}
            await kicked.end()
            assert server.connections.history[-1].reason == "Kicked"
            for wrong in ({"cid": cid}, {}, {"cid": [1]}):
                refused = await ask(admin, order, wrong)
                assert refused["error"] == {
                    "code": 500, "description": "no such client or leafnode id",
                }  # fmt: skip
            assert (await ask(admin, order, []))["error"]["code"] == 400
            with pytest.raises(nats.errors.NoRespondersError):
                await ask(admin, "$SYS.REQ.SERVER.PING.KICK", {"cid": 1})
            await admin.close()

    run(test())


def test_a_client_is_told_about_lame_duck_mode() -> None:
    async def test() -> None:
        async with running(**SETTINGS) as server:
            admin = await client(server)
            sent_away = await RawClient.open(server, connect=CONNECT)
            await sent_away.flush()
            assert (await sent_away.read_info())["connect_info"] is True
            order = f"$SYS.REQ.SERVER.{server.id}.LDM"
            assert set(await ask(admin, order, {"cid": sent_away.info["client_id"]})) == {"server"}
            assert (await sent_away.read_info())["ldm"] is True
            assert not server.lame_duck
            sent_away.close()
            await admin.close()

    run(test())


def test_reload_and_its_failure_are_answered() -> None:
    async def test() -> None:
        came = asyncio.Event()
        refusal = "can only reload config when a file is provided"
        answers = iter([ValueError(refusal), None])

        def reload() -> None:
            if error := next(answers):
                raise error
            came.set()

        async with Tasks() as tasks:
            broker = Broker(local(**SETTINGS), tasks, reload)
            await broker.start()
            server = broker.server
            admin = await client(server)
            order = f"$SYS.REQ.SERVER.{server.id}.RELOAD"
            refused = await ask(admin, order)
            assert refused["error"]["code"] == 500
            assert refusal in refused["error"]["description"]
            assert set(await ask(admin, order)) == {"server"}
            await until(came.is_set)
            await admin.close()
            await broker.stop()

    run(test())


def test_requests_for_a_reload_that_wait_share_one() -> None:
    """Each took 2.4 ms, and sixteen of them one turn of the loop."""

    async def test() -> None:
        reloads = 0

        def reload() -> None:
            nonlocal reloads
            reloads += 1

        async with Tasks() as tasks:
            broker = Broker(local(**SETTINGS), tasks, reload)
            await broker.start()
            admin = await client(broker.server)
            order = f"$SYS.REQ.SERVER.{broker.server.id}.RELOAD"
            answers = await asyncio.gather(*(ask(admin, order) for _ in range(50)))
            assert [set(answer) for answer in answers] == [{"server"}] * 50
            assert 0 < reloads < 10
            await admin.close()
            await broker.stop()

    run(test())
