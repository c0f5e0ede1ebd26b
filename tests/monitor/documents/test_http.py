"""The HTTP monitor: exact counters, paging, and every path."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from broker.config.options import Http
from broker.server.server import Server
from tests.support.server import PATIENCE, RawClient, broker_of, run, running, until

HTTP = Http("127.0.0.1", -1)


def http_port(server: Server) -> int:
    http = broker_of(server).monitor.http
    assert http is not None
    return http.port


async def get(server: Server, path: str) -> tuple[int, str, bytes]:
    url = f"http://127.0.0.1:{http_port(server)}{path}"

    def fetch() -> tuple[int, str, bytes]:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read()

    return await asyncio.get_running_loop().run_in_executor(None, fetch)


async def document(server: Server, path: str) -> Any:
    code, kind, body = await get(server, path)
    assert code == 200, body
    assert kind.startswith("application/json")
    return json.loads(body)


def own_subscriptions(server: Server) -> int:
    """The subscriptions of the server itself."""
    clients = sum(len(connection.subs) for connection in server.connections.values())
    return sum(len(account.subs) for account in server.accounts.values()) - clients


def test_counters_are_exact_after_a_flush() -> None:
    async def test() -> None:
        async with running(http=HTTP, server_name="m") as server:
            client = await RawClient.open(server)
            client.send(b"SUB foo 1\r\n" + b"PUB foo 1\r\nx\r\n" * 100)
            client.send(b"HPUB foo 12 14\r\nNATS/1.0\r\n\r\nhi\r\n")
            await client.flush()
            found = await document(server, "/varz")
            assert (found["in_msgs"], found["in_bytes"]) == (101, 114)
            assert (found["out_msgs"], found["out_bytes"]) == (101, 114)
            assert found["server_name"] == "m"
            assert found["port"] == server.port
            assert found["connections"] == found["total_connections"] == 1
            assert found["subscriptions"] == 1 + own_subscriptions(server)
            assert found["http_req_stats"] == {"/varz": 1}
            assert "connect_urls" not in found
            client.close()
            await until(lambda: not server.connections)
            found = await document(server, "/varz")
            assert found["in_msgs"] == 101
            assert found["connections"] == 0

    run(test())


def test_connz_lists_sorts_pages_and_keeps_history() -> None:
    async def test() -> None:
        async with running(http=HTTP) as server:
            clients = []
            for number in range(3):
                connect = b'CONNECT {"verbose":false,"name":"c%d","lang":"x","version":"1"}\r\n'
                client = await RawClient.open(server, connect=connect % number)
                client.send(b"SUB s.%d q 7\r\n" % number + b"PUB a 1\r\nx\r\n" * number)
                await client.flush()
                clients.append(client)
            found = await document(server, "/connz?subs=1")
            assert found["num_connections"] == found["total"] == 3
            assert [one["name"] for one in found["connections"]] == ["c0", "c1", "c2"]
            assert found["connections"][1]["subscriptions_list"] == ["s.1"]
            assert found["connections"][2]["in_msgs"] == 2
            found = await document(server, "/connz?sort=msgs_from&limit=1&offset=1&auth=true")
            assert [one["name"] for one in found["connections"]] == ["c1"]
            assert found["connections"][0]["account"] == "$G"
            cid = clients[2].info["client_id"]
            found = await document(server, f"/connz?cid={cid}&subs=detail")
            (one,) = found["connections"]
            assert one["subscriptions_list_detail"] == [
                {"subject": "s.2", "qgroup": "q", "sid": "7", "msgs": 0, "cid": cid}
            ]
            clients.pop().close()
            await until(lambda: len(server.connections) == 2)
            found = await document(server, "/connz?state=closed")
            assert [one["reason"] for one in found["connections"]] == ["Client Closed"]
            assert (await document(server, "/connz?state=any"))["total"] == 3
            for bad in ("sort=nonsense", "limit=x", "state=odd", "auth=perhaps"):
                code, _, _ = await get(server, f"/connz?{bad}")
                assert code == 400, bad
            for client in clients:
                client.close()

    run(test())


def test_other_paths() -> None:
    async def test() -> None:
        async with running(http=HTTP) as server:
            client = await RawClient.open(server)
            client.send(b"SUB foo.* 1\r\n")
            await client.flush()
            assert await document(server, "/healthz") == {"status": "ok"}
            assert (await document(server, "/jsz"))["disabled"] is True
            assert (await document(server, "/routez"))["num_routes"] == 0
            subs = await document(server, "/subsz?subs=1&test=foo.x")
            assert subs["num_subscriptions"] == 1 + own_subscriptions(server)
            assert subs["subscriptions_list"][0]["subject"] == "foo.*"
            code, kind, page = await get(server, "/")
            assert code == 200
            assert kind.startswith("text/html")
            assert b"console/main.js" in page
            assert (await get(server, "/nothing"))[0] == 404
            code, _, text = await get(server, "/metrics")
            assert code == 200
            assert b"\njetraft_connections 1\n" in text
            assert b"jetraft_loop_lag_seconds" in text
            client.close()

    run(test())


def test_base_path() -> None:
    async def test() -> None:
        async with running(http=Http("127.0.0.1", -1, base_path="/nats")) as server:
            assert await document(server, "/nats/healthz") == {"status": "ok"}
            assert (await get(server, "/healthz"))[0] == 404

    run(test())


def test_clients_get_changed_cluster_urls_once() -> None:
    async def test() -> None:
        async with running(http=HTTP) as server:
            client = await RawClient.open(server)
            await client.flush()
            await client.read_info()
            old = await RawClient.open(server, connect=b'CONNECT {"verbose":false}\r\n')
            await old.flush()
            own = f"127.0.0.1:{server.port}"
            for _ in range(2):
                server.set_cluster_urls(["127.0.0.1:1", "127.0.0.1:2"])
            assert (await client.read_info())["connect_urls"] == [own, "127.0.0.1:1", "127.0.0.1:2"]
            assert (await document(server, "/varz"))["connect_urls"][0] == own
            server.set_cluster_urls([])
            assert "connect_urls" not in await client.read_info()
            client.send(b"PING\r\n")
            assert await client.line() == b"PONG\r\n"
            old.send(b"PING\r\n")
            assert await old.line() == b"PONG\r\n"
            client.close()
            old.close()

    run(test())


def test_accounts_have_their_numbers() -> None:
    async def test() -> None:
        async with running(http=HTTP) as server:
            assert (await document(server, "/accstatz"))["account_statz"] == []
            client = await RawClient.open(server)
            client.send(b"SUB a 1\r\nPUB a 5\r\nhello\r\n")
            await client.flush()
            (used,) = (await document(server, "/accstatz"))["account_statz"]
            assert (used["acc"], used["conns"]) == ("$G", 1)
            none = {"msgs": 0, "bytes": 0}
            others = dict.fromkeys(("gateways", "routes", "leafs"), none)
            assert used["received"] == {"msgs": 1, "bytes": 5, **others}
            assert used["sent"] == used["received"]
            every = (await document(server, "/accstatz?unused=1"))["account_statz"]
            assert {one["acc"] for one in every} == {"$G", "$SYS"}
            client.close()

    run(test())


@pytest.mark.parametrize(
    "sent",
    [b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/9\r\n\r\n"],
    ids=["too long", "no such version"],
)
def test_what_is_not_http_is_answered_and_not_logged(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody who reaches the port could fill the log."""

    async def test() -> None:
        async with running(http=HTTP) as server:
            assert (await get(server, "/varz"))[0] == 200  # it serves
            reader, writer = await asyncio.open_connection("127.0.0.1", http_port(server))
            writer.write(sent)
            assert (await reader.readline()).startswith(b"HTTP/1.0 400")
            writer.close()
            await writer.wait_closed()

    run(test())
    assert not [record for record in caplog.records if record.exc_info]
