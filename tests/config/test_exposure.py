"""Warnings at start: what a configuration leaves open is said, and nothing else."""

from __future__ import annotations

import logging

import pytest

from broker.config.exposure import exposures
from broker.config.options import (
    Authorization,
    ClusterOptions,
    Http,
    Options,
    TlsOptions,
    User,
    WebSocketOptions,
)
from tests.support.server import local, run, running_broker

HERE = "127.0.0.1"
ALL = "0.0.0.0"
USER = Authorization(user="a", password="b")
TLS = TlsOptions(cert_file="c", key_file="k")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(host=HERE), []),
        (Options(host=ALL), ["Clients need no credentials"]),
        (Options(host="::"), ["Clients need no credentials"]),
        (Options(host=ALL, authorization=USER), []),
        (
            Options(host=ALL, authorization=Authorization(users=(User("s"),), open_to_all=True)),
            ["Only the system account has users"],
        ),
        (Options(host=HERE, cluster=ClusterOptions()), ["no authorization", "no TLS"]),
        (Options(host=HERE, cluster=ClusterOptions(password="x")), ["no TLS"]),
        (Options(host=HERE, cluster=ClusterOptions(user="x", tls=TLS)), ["but no password"]),
        (Options(host=HERE, cluster=ClusterOptions(user="x", password="y", tls=TLS)), []),
        (Options(host=HERE, http=Http(ALL, 8222)), ["Monitoring is open"]),
        (Options(host=HERE, http=Http(HERE, 8222)), []),
        (
            Options(host=HERE, websocket=WebSocketOptions(host=ALL, no_tls=True)),
            ["WebSocket clients need no credentials"],
        ),
        (Options(host=HERE, websocket=WebSocketOptions(host=ALL, user="u", password="p")), []),
    ],
)
def test_what_is_open_is_said(options: Options, said: list[str]) -> None:
    found = exposures(options)
    assert len(found) == len(said)
    assert all(part in sentence for part, sentence in zip(said, found, strict=True))


def test_a_node_says_it_at_start(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        cluster = ClusterOptions(name="c", host=HERE, port=-1)
        async with running_broker(local(server_name="a", cluster=cluster)):
            pass

    with caplog.at_level(logging.WARNING, logger="broker"):
        run(test())
    said = [record.getMessage() for record in caplog.records]
    assert any("can join as a node" in line for line in said)
    assert any("has no TLS" in line for line in said)
