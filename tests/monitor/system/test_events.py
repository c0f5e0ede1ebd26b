"""Events: published in the system account, and built only when there is a subscriber."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from broker.config.options import Authorization
from broker.monitor.system import events
from tests.support.server import PATIENCE, RawClient, broker_of, run, running, until
from tests.support.system import SETTINGS, USERS, client

PREFIX = "io.nats.server.advisory.v1."


async def next_of(listening: Any) -> Any:
    message = await listening.next_msg(PATIENCE)
    return msgspec.json.decode(message.data)


def test_connect_and_disconnect_are_published() -> None:
    async def test() -> None:
        async with running(**SETTINGS) as server:
            admin = await client(server)
            came = await admin.subscribe("$SYS.ACCOUNT.A.CONNECT")
            went = await admin.subscribe("$SYS.ACCOUNT.A.DISCONNECT")
            counts = await admin.subscribe("$SYS.ACCOUNT.A.SERVER.CONNS")
            old_counts = await admin.subscribe("$SYS.SERVER.ACCOUNT.A.CONNS")
            await admin.flush()
            otto = await client(server, "otto", name="me")
            await otto.publish("a", b"123")
            await otto.close()
            connect, disconnect = await next_of(came), await next_of(went)
            assert connect["type"] == PREFIX + "client_connect"
            assert connect["server"]["id"] == server.id
            about = connect["client"]
            assert (about["acc"], about["user"], about["name"]) == ("A", "otto", "me")
            assert (about["kind"], about["client_type"]) == ("Client", "nats")
            assert "stop" not in about
            assert disconnect["type"] == PREFIX + "client_disconnect"
            assert disconnect["client"]["id"] == about["id"]
            assert disconnect["client"]["stop"] >= about["start"]
            assert disconnect["sent"] == {"msgs": 1, "bytes": 3}
            assert disconnect["reason"] == "Client Closed"
            for listening in (counts, old_counts):
                assert [(await next_of(listening))["conns"] for _ in range(2)] == [1, 0]
            await admin.close()

    run(test())


def test_a_refused_client_is_an_auth_error_and_leaves_the_global_account() -> None:
    async def test() -> None:
        async with running(**SETTINGS) as server:
            admin = await client(server)
            refused = await admin.subscribe(f"$SYS.SERVER.{server.id}.CLIENT.AUTH.ERR")
            everything = await admin.subscribe("$SYS.ACCOUNT.*.*")
            await admin.flush()
            intruder = await RawClient.open(
                server, connect=b'CONNECT {"user":"otto","pass":"no","protocol":1}\r\n'
            )
            await intruder.end()
            told = await next_of(refused)
            assert told["client"]["user"] == "otto"
            assert told["reason"] == "Authentication Failure"
            left = await next_of(everything)
            assert (left["type"], left["client"]["acc"]) == (PREFIX + "client_disconnect", "$G")
            otto = await client(server, "otto")
            assert (await next_of(everything))["type"] == PREFIX + "client_connect"
            await otto.close()
            await admin.close()

    run(test())


def test_events_without_subscribers_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*_: object, **__: object) -> Any:
        raise AssertionError("an event was built without a subscriber")

    async def test() -> None:
        async with running(**SETTINGS) as server:
            for name in ("client", "connections_event", "statsz"):
                monkeypatch.setattr(events, name, built)
            admin, otto = await client(server), await client(server, "otto")
            observed = broker_of(server).monitor.observed
            seen = observed.stamp()["seq"]
            await otto.close()
            await until(lambda: len(server.connections) == 1)
            assert observed.stamp()["seq"] == seen + 1
            await admin.close()

    run(test())


def test_statsz_is_published_regularly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "STATSZ_EVERY_S", 0.01)

    async def test() -> None:
        async with running(**SETTINGS) as server:
            admin = await client(server)
            listening = await admin.subscribe(f"$SYS.SERVER.{server.id}.STATSZ")
            first, second = await next_of(listening), await next_of(listening)
            assert first["statsz"]["connections"] == 1
            assert second["server"]["seq"] > first["server"]["seq"]
            await admin.close()

    run(test())


def test_lame_duck_and_shutdown_are_published() -> None:
    async def test() -> None:
        async with running(**SETTINGS) as server:
            admin = await client(server)
            heard = await admin.subscribe("$SYS.SERVER.*.*")
            await admin.flush()
            server.spawn(broker_of(server).enter_lame_duck(), name="lame duck")
            for what in ("LAMEDUCK", "SHUTDOWN"):
                message = await heard.next_msg(PATIENCE)
                assert message.subject == f"$SYS.SERVER.{server.id}.{what}"
                assert msgspec.json.decode(message.data)["name"] == "n-1"
                await broker_of(server).stop()

    run(test())


def test_an_anonymous_client_with_wrong_credentials_is_never_connected() -> None:
    async def test() -> None:
        authorization = Authorization(users=USERS, no_auth_user="otto")
        async with running(**{**SETTINGS, "authorization": authorization}) as server:
            admin = await client(server)
            everything = await admin.subscribe("$SYS.ACCOUNT.A.*")
            await admin.flush()
            intruder = await RawClient.open(
                server, connect=b'CONNECT {"user":"otto","pass":"no","protocol":1}\r\n'
            )
            await intruder.end()
            otto = await client(server, "otto")
            assert (await next_of(everything))["type"] == PREFIX + "client_connect"
            await otto.close()
            await admin.close()

    run(test())
