"""Routes of the `cluster` block: the advertised address, and errors at start."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from broker.config.options import (
    ClusterOptions,
    LinkCompression,
    Permissions,
    SubjectRules,
    TlsOptions,
)
from broker.main import ClusterRuntime
from broker.server.services import StartFailed
from tests.support.server import RawClient, local, run, running_broker, until


@asynccontextmanager
async def node(name: str, cluster: ClusterOptions) -> AsyncIterator[ClusterRuntime]:
    async with running_broker(local(server_name=name, cluster=cluster)) as broker:
        assert broker.runtime is not None
        yield broker.runtime


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("with_port", [True, False])
def test_peers_are_told_the_advertised_address(*, with_port: bool) -> None:
    async def test() -> None:
        port = free_port()
        advertise = f"localhost:{port}" if with_port else "localhost"
        told = ClusterOptions(name="c", host="127.0.0.1", port=port, advertise=advertise)
        async with node("a", told) as a:
            route = f"nats://127.0.0.1:{a.ports()['cluster']}"
            other = ClusterOptions(name="c", host="127.0.0.1", port=-1, routes=(route,))
            async with node("b", other) as b:
                await until(lambda: b.routez()["num_routes"] == 1)
                seen = b.routez()["routes"][0]
                assert (seen["ip"], seen["port"]) == ("localhost", port)

    run(test())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tls": TlsOptions(cert_file="/missing", key_file="/missing")}, "^cluster tls: "),
        ({"tls": TlsOptions(cert_file=__file__, key_file=__file__)}, "^cluster tls: "),
        ({"advertise": "here:word"}, '^cluster advertise: could not parse port "word"$'),
    ],
)
def test_impossible_settings_are_reported_at_start(
    settings: dict[str, object], sentence: str
) -> None:
    async def test() -> None:
        cluster = ClusterOptions(name="c", host="127.0.0.1", port=-1, **settings)  # type: ignore[arg-type]
        with pytest.raises(StartFailed, match=sentence):
            async with node("a", cluster):
                pass

    asyncio.run(test())


def test_a_password_without_a_user_protects_the_routes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        closed = ClusterOptions(name="c", host="127.0.0.1", port=-1, password="secret")
        async with node("a", closed) as a:
            route = f"nats://127.0.0.1:{a.ports()['cluster']}"
            stranger = ClusterOptions(name="c", host="127.0.0.1", port=-1, routes=(route,))
            async with node("x", stranger) as x:
                await until(lambda: "does not have the credentials" in caplog.text)
                assert x.routez()["num_routes"] == 0
            member = ClusterOptions(
                name="c", host="127.0.0.1", port=-1, routes=(route,), password="secret"
            )
            async with node("b", member) as b:
                await until(lambda: b.routez()["num_routes"] == 1)

    run(test())


async def message(client: RawClient) -> tuple[bytes, bytes]:
    """The next one, after any INFO."""
    while (line := await client.line()).startswith(b"INFO "):
        pass
    return line, await client.line()


def test_permissions_and_compression_hold_and_can_be_reloaded() -> None:
    """A denied subject does not cross, and what crosses is compressed."""

    async def test() -> None:
        strict = ClusterOptions(
            name="c",
            host="127.0.0.1",
            port=-1,
            permissions=Permissions(publish=SubjectRules(deny=(b"secret",))),
            compression=LinkCompression("s2_fast"),
        )
        async with running_broker(local(server_name="a", cluster=strict)) as one:
            a = one.runtime
            assert a is not None
            assert a.mesh is not None
            route = f"nats://127.0.0.1:{a.ports()['cluster']}"
            other = ClusterOptions(name="c", host="127.0.0.1", port=-1, routes=(route,))
            async with running_broker(local(server_name="b", cluster=other)) as two:
                b = two.runtime
                assert b is not None
                await until(lambda: a.routez()["num_routes"] == b.routez()["num_routes"] == 1)
                modes = [node.routez()["routes"][0]["compression"] for node in (a, b)]
                assert modes == ["s2_fast", "s2_fast"]  # b accepts what a wants
                assert b.routez()["routes"][0]["import"] == {"deny": ["secret"]}
                hears, tells = await RawClient.open(one.server), await RawClient.open(two.server)
                hears.send(b"SUB secret 1\r\nSUB open 2\r\n")
                await hears.flush()
                account = two.server.account("$G")
                await until(lambda: two.server.router.has_interest(account, b"open"))
                text = b"x" * 100_000
                tells.send(b"PUB secret 1\r\n-\r\nPUB open 100000\r\n" + text + b"\r\n")
                assert await message(hears) == (b"MSG open 2 100000\r\n", text + b"\r\n")
                assert b.mesh is not None
                assert b.mesh.transport is not None
                assert b.mesh.transport.statistics().sent_bytes < 50_000
                open_again = replace(strict, permissions=None, compression=LinkCompression("off"))
                a.mesh.reconfigure(open_again)
                await until(lambda: two.server.router.has_interest(account, b"secret"))
                await until(lambda: b.routez()["routes"][0]["compression"] == "off")
                await until(lambda: "import" not in b.routez()["routes"][0])
                tells.send(b"PUB secret 1\r\n-\r\n")
                assert await message(hears) == (b"MSG secret 1 1\r\n", b"-\r\n")
                hears.close()
                tells.close()

    run(test())
