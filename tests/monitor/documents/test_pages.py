"""Monitoring documents are paged: exact counts, bounded lists, bounded cost."""

from __future__ import annotations

import asyncio

import pytest

from broker.monitor.documents import connz
from broker.server.client import connections as record
from tests.monitor.documents.test_http import HTTP, document, get, http_port
from tests.support.server import PATIENCE, RawClient, run, running, until


def test_subscriptions_are_paged_over_all_connections() -> None:
    async def test() -> None:
        async with running(http=HTTP) as server:
            clients = [await RawClient.open(server) for _ in range(3)]
            for number, client in enumerate(clients):
                for sid in range(4):
                    client.send(b"SUB s.%d.%d %d\r\n" % (number, sid, sid))
                await client.flush()
            everything = [f"s.{number}.{sid}" for number in range(3) for sid in range(4)]
            for offset in range(14):
                for limit in (1, 3, 5, 20):
                    path = f"/subsz?subs=1&offset={offset}&limit={limit}"
                    found = await document(server, path)
                    shown = [one["subject"] for one in found["subscriptions_list"]]
                    assert shown == everything[offset : offset + limit], path
                    assert found["total"] == 12
            found = await document(server, "/subsz?test=s.1.2&offset=0&limit=5")
            assert [one["subject"] for one in found["subscriptions_list"]] == ["s.1.2"]
            assert found["total"] == 1
            for client in clients:
                client.close()

    run(test())


def test_connections_are_paged_in_their_order() -> None:
    async def test() -> None:
        async with running(http=HTTP) as server:
            clients = [await RawClient.open(server) for _ in range(4)]
            cids = [client.info["client_id"] for client in clients]
            for offset in range(5):
                for order in ("", "&sort=start"):
                    path = f"/connz?offset={offset}&limit=2{order}"
                    found = await document(server, path)
                    shown = [one["cid"] for one in found["connections"]]
                    assert shown == cids[offset : offset + 2], path
                    assert (found["total"], found["num_connections"]) == (4, len(shown))
            found = await document(server, "/connz?offset=-3&limit=-1")
            assert (found["offset"], found["limit"], found["num_connections"]) == (0, 1024, 4)
            for client in clients:
                client.close()

    run(test())


def test_lists_are_cut_and_counts_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connz, "LISTED_MAX", 5)
    monkeypatch.setattr(connz, "LIMIT_MAX", 6)
    monkeypatch.setattr(record, "KEPT_MAX", 2)

    async def test() -> None:
        async with running(http=HTTP) as server:
            clients = [await RawClient.open(server) for _ in range(2)]
            for client in clients:
                client.send(b"".join(b"SUB x.%d %d\r\n" % (i, i) for i in range(4)))
                await client.flush()
            found = await document(server, "/connz?subs=1&limit=1000000")
            assert found["limit"] == 6
            assert [one["subscriptions"] for one in found["connections"]] == [4, 4]
            assert [len(one["subscriptions_list"]) for one in found["connections"]] == [4, 1]
            assert (
                len((await document(server, "/subsz?subs=1&limit=99"))["subscriptions_list"]) == 6
            )
            for client in clients:
                client.close()
            await until(lambda: not server.connections)
            found = await document(server, "/connz?state=closed&subs=detail")
            for one in found["connections"]:
                assert len(one["subscriptions_list_detail"]) == 2

    run(test())


def test_an_unfinished_request_of_the_console_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.monitor.http_connections.ASKED_WITHIN_SECONDS", 0.3)

    async def test() -> None:
        async with running(http=HTTP) as server:
            await get(server, "/")  # aiohttp is imported now
            slow = await asyncio.open_connection("127.0.0.1", http_port(server))
            slow[1].write(b"POST / HTTP/1.1\r\nHost: x\r\nX-")
            async with asyncio.timeout(PATIENCE):
                assert await slow[0].read() == b""
            slow[1].close()

    run(test())
