"""Routes of the `cluster` block: the advertised address, and errors at start."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from broker.config.options import ClusterOptions, TlsOptions
from broker.main import ClusterRuntime
from broker.server.services import StartFailed
from tests.support.server import local, run, running_broker, until


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
