"""Accounts that are fetched when a user logs in: from a URL, or from a server with all of them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.config.load import BadSettings, load, parse_flags
from broker.main import Broker
from broker.server.process.reload import merge
from broker.server.process.tasks import Tasks
from tests.accounts.test_claims_requests import SYSTEM
from tests.accounts.test_operator_mode import (
    ACCOUNT,
    OTHER,
    STRANGER,
    account,
    admitted,
    operator,
    refused,
    user,
)
from tests.support.server import run

CERTS = Path(__file__).parents[1] / "support" / "certs"


class Shop:
    """An HTTP server with account JWTs."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.asked: list[str] = []
        self.garbled = False
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).split()[1].decode()
        while (await reader.readline()).strip():
            pass
        name = path.rpartition("/")[2]
        self.asked.append(name)
        if self.garbled:
            writer.write(b"not an answer\r\n\r\n")
            writer.close()
            return
        body = self.texts.get(name, "").encode()
        line = b"HTTP/1.0 200 OK" if body else b"HTTP/1.0 404 Not Found"
        writer.write(line + b"\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()
        await writer.wait_closed()


def configured(tmp_path: Path, resolver: str, tls: str = "") -> Any:
    path = tmp_path / "server.conf"
    path.write_text(
        tls + f'listen: "127.0.0.1:-1"\noperator: {operator(system_account=SYSTEM.public)}\n'
        f"resolver: {resolver}\n"
        f"resolver_preload {{ {SYSTEM.public}: {account(SYSTEM)} }}\n"
    )
    return load(parse_flags(["-c", str(path)])).options


@asynccontextmanager
async def fetching(tmp_path: Path, tls: str = "") -> AsyncIterator[tuple[Broker, Shop]]:
    """`tls`: our `resolver_tls`; then the shop wants a certificate and has one."""
    shop = Shop()
    context = None
    if tls:
        certificates = {name: str(CERTS / f"server-{name}.pem") for name in ("cert", "key")}
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=CERTS / "ca.pem")
        context.load_cert_chain(certificates["cert"], certificates["key"])
        context.verify_mode = ssl.CERT_REQUIRED
    listener = await asyncio.start_server(shop.serve, "127.0.0.1", 0, ssl=context)
    port = listener.sockets[0].getsockname()[1]
    scheme = "https" if tls else "http"
    resolver = f"URL({scheme}://127.0.0.1:{port}/jwt/v1/accounts)"
    async with listener, Tasks() as tasks:

        def reload() -> None:
            wanted = configured(tmp_path, resolver, tls)
            broker.reconfigure(merge(broker.server.options, wanted))

        broker = Broker(configured(tmp_path, resolver, tls), tasks, reload)
        try:
            await broker.start()
            yield broker, shop
        finally:
            await broker.stop()
            for file in Path(broker.server.options.resolver.directory).glob("*"):  # type: ignore[union-attr]
                file.unlink()


def test_an_account_is_fetched_at_the_first_login(tmp_path: Path) -> None:
    async def test() -> None:
        async with fetching(tmp_path) as (broker, shop):
            shop.texts[ACCOUNT.public] = account()
            clients = [await admitted(broker.server, user()) for _ in range(3)]
            assert shop.asked == [ACCOUNT.public]
            for client in clients:
                client.close()

    run(test())


def test_the_connection_to_the_url_uses_resolver_tls(tmp_path: Path) -> None:
    files = f'cert_file: "{CERTS}/client-cert.pem", key_file: "{CERTS}/client-key.pem"'
    tls = f'resolver_tls {{ ca_file: "{CERTS}/ca.pem", {files} }}\n'

    async def test() -> None:
        async with fetching(tmp_path, tls) as (broker, shop):
            shop.texts[ACCOUNT.public] = account()
            client = await admitted(broker.server, user())
            assert shop.asked == [ACCOUNT.public]
            client.close()
        async with fetching(tmp_path, "resolver_tls { insecure: true }\n") as (broker, shop):
            shop.texts[ACCOUNT.public] = account()
            await refused(broker.server, user())  # we presented no certificate
            assert not shop.asked

    run(test())


def test_what_is_not_there_or_not_trusted_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with fetching(tmp_path) as (broker, shop):
            await refused(broker.server, user())
            await refused(broker.server, user())
            assert shop.asked == [ACCOUNT.public]  # not again at once
            shop.texts[OTHER.public] = account(OTHER, signer=STRANGER)
            await refused(broker.server, user(OTHER))
            assert OTHER.public not in broker.server.accounts

    run(test())


@pytest.mark.parametrize("named", ["../../admin?key=", "x HTTP/1.1\r\nHost: a", "*", "ABC"])
def test_only_the_key_of_an_account_is_asked_for(tmp_path: Path, named: str) -> None:
    """Anybody can sign a user that names it: it would be part of the URL."""

    async def test() -> None:
        async with fetching(tmp_path) as (broker, shop):
            await refused(broker.server, user(OTHER, nats={"issuer_account": named}))
            assert shop.asked == []

    run(test())


def test_an_answer_that_is_not_http_is_a_refusal(tmp_path: Path) -> None:
    async def test() -> None:
        async with fetching(tmp_path) as (broker, shop):
            shop.garbled = True
            await refused(broker.server, user())
            await refused(broker.server, user())
            assert shop.asked == [ACCOUNT.public]  # not again at once

    run(test())


@pytest.mark.parametrize(
    ("resolver", "message"),
    [
        ("URL(ftp://x)", "not one of http or https"),
        ("{ type: other, dir: x }", "neither full nor cache"),
        ("{ type: full, dir: x, ttl: 1h }", "ttl is not for"),
        ("{ type: cache }", "dir has no value"),
    ],
)
def test_other_resolvers_are_refused(tmp_path: Path, resolver: str, message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        configured(tmp_path, resolver)


def test_a_cache_keeps_accounts_for_an_hour(tmp_path: Path) -> None:
    options = configured(tmp_path, f'{{ type: cache, dir: "{tmp_path}/jwt", timeout: "1s" }}')
    assert options.resolver.cache
    assert options.resolver.ttl_ns == 3600 * 10**9
    assert options.resolver.timeout_ns == 10**9
