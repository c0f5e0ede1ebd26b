"""The server's own clients: always admitted, never counted or listed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.config.options import (
    SECOND,
    AccountOptions,
    Authorization,
    Limits,
    TlsOptions,
    User,
)
from broker.server.listeners import internal_client
from broker.server.server import Server
from tests.support.server import PATIENCE, RawClient, broker_of, run, running, until

CERTS = Path(__file__).parents[2] / "support" / "certs"
CERTIFICATES = {
    "cert_file": str(CERTS / "server-cert.pem"),
    "key_file": str(CERTS / "server-key.pem"),
    "ca_file": str(CERTS / "ca.pem"),
    "verify": True,
}
USERS = Authorization(users=(User(name="u", password="p", account="A"),))
B = AccountOptions("B", max_connections=0, max_subscriptions=0, max_payload=1)
DOORS: dict[str, dict[str, Any]] = {
    "open": {},
    "token": {"authorization": Authorization(token="t")},
    "user": {"authorization": Authorization(user="u", password="p")},
    "users": {"authorization": USERS},
    "certificates": {"tls": TlsOptions(**CERTIFICATES)},
    "handshake first": {"tls": TlsOptions(**CERTIFICATES, handshake_first=True)},
    "no connections": {"limits": Limits(max_connections=-1)},
    "few subscriptions": {"limits": Limits(max_subscriptions=1, max_sub_tokens=1)},
    "small payloads": {"limits": Limits(max_payload=1)},
    "no headers": {"headers": False},
    "limits of the account": {"accounts": (B,)},
}
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'


@asynccontextmanager
async def insider(server: Server, account: str = "B") -> AsyncIterator[RawClient]:
    client = RawClient(*internal_client.connect(server, account))
    try:
        client.info = await client.read_info()
        client.send(CONNECT)
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("door", list(DOORS))
def test_internal_clients_are_admitted_whatever_is_configured(door: str) -> None:
    async def test() -> None:
        async with running(**DOORS[door]) as server, insider(server) as one:
            one.send(b"SUB a.b 1\r\nSUB c.d 2\r\n")
            assert await one.flush() == b""
            async with insider(server) as other, insider(server, "C") as stranger:
                stranger.send(b"PUB a.b 7\r\nforeign\r\n")
                assert await stranger.flush() == b""
                other.send(b"PUB a.b 5\r\nhello\r\nPUB none nobody 0\r\n\r\n")
                assert await other.flush() == b""
            await one.exactly(b"MSG a.b 1 5\r\nhello\r\n")

    run(test())


def test_internal_clients_are_neither_counted_nor_listed() -> None:
    accounts = (AccountOptions("B", max_connections=1),)
    users = tuple(
        User(name=name, password="p", account=account)
        for name, account in (("b", "B"), ("admin", "$SYS"))
    )

    async def test() -> None:
        auth = Authorization(users=users)
        async with running(accounts=accounts, authorization=auth) as server:
            admin = await RawClient.open(server, connect=as_user("admin"))
            admin.send(b"SUB $SYS.ACCOUNT.B.> 1\r\n")
            await admin.flush()
            async with insider(server) as one, insider(server) as other:
                await one.flush()
                await other.flush()
                assert len(server.connections.internal) == 2
                assert list(server.connections) == [admin.info["client_id"]]
                assert server.connections.counters.total_connections == 1
                assert not server.accounts["B"].connections
            await until(lambda: not server.connections.internal)
            assert not server.connections.history
            assert await admin.flush() == b""
            client = await RawClient.open(
                server, connect=as_user("b")
            )  # the internal clients do not count against max_connections
            assert await client.flush() == b""
            client.close()
            admin.close()

    run(test())


def as_user(name: str) -> bytes:
    return b'CONNECT {"verbose":false,"user":"%b","pass":"p"}\r\n' % name.encode()


def test_internal_clients_have_no_authentication_deadline() -> None:
    async def test() -> None:
        auth = msgspec.structs.replace(USERS, timeout_ns=SECOND // 100)
        async with running(authorization=auth) as server:
            silent = RawClient(*internal_client.connect(server, "B"))
            await silent.read_info()
            client = await RawClient.open(server, connect=None)
            assert await client.end() == b"-ERR 'Authentication Timeout'\r\n"
            silent.send(CONNECT)
            assert await silent.flush() == b""
            silent.close()

    run(test())


def test_internal_clients_survive_a_reload_of_users() -> None:
    async def test() -> None:
        async with running(authorization=USERS) as server, insider(server) as one:
            await one.flush()
            client = await RawClient.open(server, connect=as_user("u"))
            await client.flush()
            server.reconfigure(
                msgspec.structs.replace(server.options, authorization=Authorization(token="t"))
            )
            assert await client.end() == b"-ERR 'Authorization Violation'\r\n"
            assert await one.flush() == b""

    run(test())


def test_internal_clients_close_with_the_server() -> None:
    async def test() -> None:
        async with running() as server, insider(server) as one:
            await one.flush()
            await broker_of(server).stop()
            async with asyncio.timeout(PATIENCE):
                assert await one.reader.read() == b""
            assert not server.connections.internal

    run(test())
