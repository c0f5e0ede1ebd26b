"""Mirrors and sources of streams on the same server, whatever its client port requires.

Every test runs against our server and against nats-server, with the same configuration."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import StreamConfig, StreamSource

from broker.local import LocalCluster, LocalNode, our_command
from tests.support.clients import open_client
from tests.support.clusters import eventually, nats_server, run

CERTS = Path(__file__).parents[1] / "support" / "certs"
COUNT = 20
TLS = f"""
  cert_file: "{CERTS / "server-cert.pem"}"
  key_file: "{CERTS / "server-key.pem"}"
  ca_file: "{CERTS / "ca.pem"}"
"""
CLIENT_PORTS = {
    "tls": f"tls {{ {TLS} }}",
    "certificates": f"tls {{ {TLS} verify: true }}",
    "handshake first": f"tls {{ {TLS} verify: true, handshake_first: true }}",
    "one connection": "max_connections: 1",
    "another address": 'client_advertise: "127.0.0.1:1"',
    "account of one connection": """accounts { A {
        users: [{ user: a, password: a }], jetstream: enabled, limits { max_connections: 1 }
    } }""",
    "users": "authorization { timeout: 0.5, users: [{ user: a, password: a }] }",
}


async def connect(node: LocalNode, rules: str) -> Any:
    """The only client, with everything that the client port requires."""
    if "tls" not in CLIENT_PORTS[rules]:
        who = {"user": "a", "password": "a"} if "user: a" in CLIENT_PORTS[rules] else {}
        return await open_client(node.url, allow_reconnect=False, **who)
    context = ssl.create_default_context(cafile=str(CERTS / "ca.pem"))
    context.load_cert_chain(CERTS / "client-cert.pem", CERTS / "client-key.pem")
    return await open_client(
        f"tls://localhost:{node.client_port}",
        tls=context,
        tls_handshake_first=rules == "handshake first",
        allow_reconnect=False,
    )


async def follow(client: Any) -> None:
    """A mirror and a sourcing stream get every message of their origin."""
    streams = client.jetstream()
    await streams.add_stream(StreamConfig(name="ORDERS", subjects=["orders.*"]))
    for i in range(COUNT):
        await streams.publish(f"orders.{i}", b"order %d" % i)
    origin = StreamSource(name="ORDERS")
    await streams.add_stream(StreamConfig(name="COPY", mirror=origin))
    await streams.add_stream(StreamConfig(name="ALL", sources=[origin]))
    for name in ("COPY", "ALL"):

        async def caught_up(name: str = name) -> bool:
            return bool((await streams.stream_info(name)).state.messages == COUNT)

        await eventually(caught_up, f"{name} has all {COUNT} messages")


@pytest.mark.parametrize("command", [our_command, nats_server], ids=["ours", "nats-server"])
@pytest.mark.parametrize("rules", list(CLIENT_PORTS))
def test_a_server_reads_its_own_streams_whatever_its_client_port_requires(
    tmp_path: Path, rules: str, command: Any
) -> None:
    with LocalCluster(tmp_path, size=1, command=command(), more=CLIENT_PORTS[rules]) as cluster:
        (node,) = cluster.nodes

        async def work() -> None:
            client = await connect(node, rules)
            await follow(client)
            assert node.http("/connz")["num_connections"] == 1
            numbers = node.http("/varz")
            assert (numbers["connections"], numbers["total_connections"]) == (1, 1)
            await client.close()

        run(work)
