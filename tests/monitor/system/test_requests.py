"""Requests to servers: which of them answer, and the envelope of an answer."""

from __future__ import annotations

from typing import Any

import nats.errors
import pytest

from broker.config.options import ClusterOptions, JetStreamOptions, Options
from broker.monitor.observed import Observed
from broker.monitor.system.requests import STATES, BadRequest, query, read
from broker.server.process.tasks import Tasks
from broker.server.server import Server
from tests.support.server import broker_of, run, running
from tests.support.system import SETTINGS, ask, asked, client

NAMED = Options(
    host="127.0.0.1",
    server_name="east-1",
    server_tags=("Disk:fast", "zone:b"),
    cluster=ClusterOptions(name="east"),
    jetstream=JetStreamOptions(domain="hub"),
)


@pytest.mark.parametrize(
    ("body", "meant"),
    [
        (b"", True),
        (b"{}", True),
        (b'{"server_name":"east"}', True),
        (b'{"server_name":"west"}', False),
        (b'{"server_name":"east","exact_match":true}', False),
        (b'{"server_name":"east-1","exact_match":true}', True),
        (b'{"cluster":"eas"}', True),
        (b'{"cluster":"eas","exact_match":true}', False),
        (b'{"host":"127.0"}', True),
        (b'{"host":"10.0"}', False),
        (b'{"tags":null}', True),
        (b'{"tags":["disk:fast"]}', True),
        (b'{"tags":["DISK:FAST","zone:b"]}', True),
        (b'{"tags":["disk:fast","zone:c"]}', False),
        (b'{"domain":"hub"}', True),
        (b'{"domain":"hu"}', False),
    ],
)
def test_filters_choose_servers(body: bytes, meant: bool) -> None:
    async def test() -> None:
        async with Tasks() as tasks:
            observed = Observed(Server(NAMED, tasks.spawn), None)
            assert read(body)[0].match(observed) is meant

    run(test())


@pytest.mark.parametrize("body", [b"{bad", b"[]", b'"x"', b'{"server_name":1}', b'{"tags":"a"}'])
def test_a_body_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        read(body)


def test_options_become_the_query_of_the_monitor() -> None:
    asked_for = {"account": "A", "subscriptions": True, "limit": 10, "auth": False, "tags": None}
    assert query(asked_for) == {
        "acc": "A", "subs": "true", "limit": "10", "auth": "false", "state": "open",
    }  # fmt: skip
    assert query({"subscriptions": True, "subscriptions_detail": True})["subs"] == "detail"
    assert [query({"state": number})["state"] for number in range(3)] == list(STATES)
    for wrong in (3, -1, "open"):
        with pytest.raises(BadRequest):
            query({"state": wrong})


def test_every_service_answers_on_ping_and_by_server_id() -> None:
    async def test() -> None:
        async with running(**SETTINGS) as server:
            asking = await client(server)
            for where in ("PING", server.id):
                for name in broker_of(server).monitor.documents.by_name:
                    subject = f"$SYS.REQ.SERVER.{where}.{name.upper()}"
                    found = await ask(asking, subject)
                    assert found["server"]["id"] == server.id
                    if name not in ("raftz", "ipqueuesz"):  # which are empty here
                        assert found["data"]["server_id"] == server.id, subject
                health = await ask(asking, f"$SYS.REQ.SERVER.{where}.HEALTHZ")
                assert health["data"] == {"status": "ok", "status_code": 200}
                stats = await ask(asking, f"$SYS.REQ.SERVER.{where}.STATSZ")
                assert stats["statsz"]["connections"] == 1
                assert "data" not in stats
                bare = await ask(asking, f"$SYS.REQ.SERVER.{where}.IDZ")
                assert bare == {"name": "n-1", "host": "127.0.0.1", "id": server.id}
            with pytest.raises(nats.errors.NoRespondersError):
                await ask(asking, "$SYS.REQ.SERVER.NOBODY.VARZ")
            await asking.close()

    run(test())


def test_answers_are_numbered_and_unaddressed_servers_are_silent() -> None:
    async def test() -> None:
        async with running(**SETTINGS) as server:
            asking = await client(server)
            numbers = [
                (await ask(asking, "$SYS.REQ.SERVER.PING"))["server"]["seq"] for _ in range(3)
            ]
            assert numbers == list(range(numbers[0], numbers[0] + 3))
            for service in ("STATSZ", "VARZ", "IDZ"):
                other = {"server_name": "somebody else"}
                assert await asked(asking, f"$SYS.REQ.SERVER.PING.{service}", other) == []
                assert len(await asked(asking, f"$SYS.REQ.SERVER.PING.{service}", answers=1)) == 1
            await asking.close()

    run(test())


def test_failures_are_answered_with_a_code() -> None:
    async def test() -> None:
        async with running(**SETTINGS) as server:
            asking = await client(server)
            bad: list[Any] = await asked(asking, "$SYS.REQ.SERVER.PING.CONNZ", b"{bad", answers=1)
            assert [one["error"]["code"] for one in bad] == [400]
            assert "data" not in bad[0]
            stats = await asked(asking, "$SYS.REQ.SERVER.PING", b"{bad", answers=1)
            assert [one["error"]["code"] for one in stats] == [400]
            wrong = await ask(asking, "$SYS.REQ.SERVER.PING.CONNZ", {"sort": "bogus"})
            assert wrong["error"] == {"code": 500, "description": "invalid sorting option: bogus"}
            assert wrong["data"] is None
            assert (await ask(asking, "$SYS.REQ.SERVER.PING.IDZ"))["id"] == server.id
            await asking.close()

    run(test())
