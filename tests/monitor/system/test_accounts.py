"""Requests about accounts: which account may ask about which, and the answers."""

from __future__ import annotations

from typing import Any

import nats.errors
import pytest

from tests.support.server import PATIENCE, run, running, until
from tests.support.system import SETTINGS, ask, asked, client

ELSEWHERE = {kind: {"msgs": 0, "bytes": 0} for kind in ("gateways", "routes", "leafs")}


def test_an_ordinary_account_sees_itself_only() -> None:
    async def test() -> None:
        async with running(**SETTINGS) as server:
            admin, otto = await client(server), await client(server, "otto", name="me")
            for subject in ("$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.ACCOUNT.PING.CONNZ"):
                for body in (None, {"acc": "SYS"}, {"account": "SYS"}):
                    found = await ask(otto, subject, body)
                    assert [one["name"] for one in found["data"]["connections"]] == ["me"]
            statz = await ask(otto, "$SYS.REQ.ACCOUNT.PING.STATZ", {"include_unused": True})
            assert [one["acc"] for one in statz["data"]["account_statz"]] == ["A"]
            for other in ("SERVER.PING", "SERVER.PING.VARZ", "ACCOUNT.A.INFO", "ACCOUNT.NSUBS"):
                with pytest.raises(nats.errors.NoRespondersError):
                    await ask(otto, f"$SYS.REQ.{other}")
            found = await ask(admin, "$SYS.REQ.SERVER.PING.CONNZ")
            assert found["data"]["total"] == 2
            await admin.close()
            await otto.close()

    run(test())


def test_an_account_created_later_is_served_too() -> None:
    async def test() -> None:
        async with running() as server:
            server.account("LATE")
            assert server.router.has_interest(
                server.account("LATE"), b"$SYS.REQ.ACCOUNT.PING.STATZ"
            )

    run(test())


def test_the_system_account_asks_about_one_account() -> None:
    async def test() -> None:
        async with running(**SETTINGS) as server:
            admin, otto = await client(server), await client(server, "otto", name="me")
            await otto.subscribe("a.*")
            await otto.flush()

            async def of(account: str, service: str, body: object = None) -> Any:
                return await ask(admin, f"$SYS.REQ.ACCOUNT.{account}.{service}", body)

            connz = await of("A", "CONNZ", {"acc": "SYS"})
            assert [one["name"] for one in connz["data"]["connections"]] == ["me"]
            assert (await of("PING", "CONNZ"))["data"]["total"] == 2
            subsz = await of("A", "SUBSZ")
            assert [one["subject"] for one in subsz["data"]["subscriptions_list"]] == ["a.*"]
            info = (await of("A", "INFO"))["data"]
            assert (info["account_name"], info["client_connections"]) == ("A", 1)
            assert info["jetstream_enabled"] is False
            unknown = await of("NOPE", "INFO")
            assert unknown["error"] == {"code": 500, "description": "Account NOPE does not exist"}
            stored = await of("A", "JSZ")
            assert stored["error"]["description"] == 'account "A" not jetstream enabled'
            assert (await of("NOPE", "JSZ"))["error"]["description"] == 'account "NOPE" not found'
            assert (await of("A", "LEAFZ"))["data"]["leafnodes"] == 0
            await admin.close()
            await otto.close()

    run(test())


def test_statz_lists_accounts_with_connections() -> None:
    async def test() -> None:
        async with running(**SETTINGS) as server:
            admin, otto = await client(server), await client(server, "otto")
            await otto.publish("a", b"12345")
            await otto.flush()
            statz = await ask(admin, "$SYS.REQ.ACCOUNT.A.STATZ")
            (numbers,) = statz["data"]["account_statz"]
            assert (numbers["acc"], numbers["conns"]) == ("A", 1)
            assert numbers["received"] == {"msgs": 1, "bytes": 5, **ELSEWHERE}
            more = await client(server, "otto")
            await otto.close()
            await until(lambda: len(server.accounts["A"].connections) == 1)
            statz = await ask(admin, "$SYS.REQ.ACCOUNT.A.STATZ")
            assert statz["data"]["account_statz"][0]["received"] == {
                "msgs": 1,
                "bytes": 5,
                **ELSEWHERE,
            }
            everybody = await ask(admin, "$SYS.REQ.ACCOUNT.PING.STATZ")
            assert {one["acc"] for one in everybody["data"]["account_statz"]} == {"A", "SYS"}
            conns = await ask(admin, "$SYS.REQ.ACCOUNT.A.CONNS")
            assert conns["type"] == "io.nats.server.advisory.v1.account_connections"
            assert await asked(admin, "$SYS.REQ.ACCOUNT.$G.STATZ") == []
            assert (
                len(
                    await asked(
                        admin, "$SYS.REQ.ACCOUNT.$G.STATZ", {"include_unused": True}, answers=1
                    )
                )
                == 1
            )
            await admin.close()
            await more.close()

    run(test())


def test_subscribers_are_counted() -> None:
    async def test() -> None:
        async with running(**SETTINGS) as server:
            admin, otto = await client(server), await client(server, "otto")
            for subject, queue in (("a.*", ""), ("a.b", ""), ("a.b", "q"), ("c", "")):
                await otto.subscribe(subject, queue)
            await otto.flush()

            async def count(body: bytes) -> bytes:
                subject = "$SYS.REQ.ACCOUNT.NSUBS"
                answer = await admin.request(subject, body, timeout=PATIENCE)
                return bytes(answer.data)

            assert await count(b'{"acc":"A","subject":"a.b"}') == b"3"
            assert await count(b'{"acc":"A","subject":"a.b","queue":"cQ=="}') == b"1"
            assert await count(b'{"acc":"A","subject":"$SYS.REQ.ACCOUNT.PING.STATZ"}') == b"0"
            await admin.close()
            await otto.close()

    run(test())


def test_connections_are_found_by_subscription() -> None:
    async def test() -> None:
        async with running(**SETTINGS) as server:
            admin, otto = await client(server), await client(server, "otto", name="me")
            await otto.subscribe("a.*")
            await otto.flush()
            for pattern, names in (("a.b", ["me"]), ("a.>", ["me"]), ("b.>", [])):
                found = await ask(admin, "$SYS.REQ.SERVER.PING.CONNZ", {"filter_subject": pattern})
                assert [one["name"] for one in found["data"]["connections"]] == names
            await admin.close()
            await otto.close()

    run(test())
