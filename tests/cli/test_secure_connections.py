"""The command over TLS and over WebSocket, and a connection that is lost."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from broker.cli.connect.blocking import connected
from broker.cli.connect.options import Destination
from broker.cli.main import cli
from broker.local import LocalCluster, free_ports
from tests.support.authority import Authority

WITHIN_S = 120.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("certificates")
    for name, content in Authority().sign("server", ["127.0.0.1"]).items():
        (place / name).write_bytes(content)
    return place


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Iterator[LocalCluster]:
    tls = f'tls {{ cert_file: "{files}/tls.crt", key_file: "{files}/tls.key" }}'
    *ports, websocket = free_ports(4)
    more = f'{tls}\nwebsocket {{ listen: "127.0.0.1:{websocket}", {tls} }}'
    with LocalCluster(tmp_path_factory.mktemp("s"), size=1, ports=ports, more=more) as cluster:
        cluster.nodes[0].environment["WEBSOCKET"] = f"wss://127.0.0.1:{websocket}"
        yield cluster


@pytest.fixture(params=["tls", "wss"])
def secure(request: pytest.FixtureRequest, server: LocalCluster) -> str:
    node = server.nodes[0]
    tls = f"tls://127.0.0.1:{node.client_port}"
    return tls if request.param == "tls" else node.environment["WEBSOCKET"]


def jetraft(url: str, files: Path, *words: str, code: int = 0) -> str:
    given = [*words, "-s", url, "--tlsca", str(files / "ca.crt")]
    result = CliRunner().invoke(cli, given)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


def as_json(url: str, files: Path, *words: str) -> Any:
    return json.loads(jetraft(url, files, *words, "--json"))


def test_commands_work_over_tls_and_websocket(secure: str, files: Path, tmp_path: Path) -> None:
    data = os.urandom(700_000)
    (tmp_path / "in").write_bytes(data)
    jetraft(secure, files, "object", "add", "S")
    jetraft(secure, files, "object", "put", "S", str(tmp_path / "in"), "--name", "file")
    jetraft(secure, files, "object", "get", "S", "file", "-o", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == data
    jetraft(secure, files, "object", "rm", "S")


def test_a_server_whose_authority_is_unknown_is_refused(secure: str) -> None:
    result = CliRunner().invoke(cli, ["rtt", "-s", secure])
    assert result.exit_code == 3
    assert "TLS failed" in result.output


@pytest.mark.parametrize("kind", ["pub", "js", "sub", "request", "kv"])
def test_measurements_over_tls(server: LocalCluster, files: Path, kind: str) -> None:
    few = {"pub": ["--count", "4096"], "js": ["--count", "2048", "--samples", "5"],
           "sub": ["--count", "4096"], "request": ["--samples", "5"],
           "kv": ["--count", "2000", "--samples", "5"]}[kind]  # fmt: skip
    found = as_json(server.urls[0], files, "bench", kind, *few)
    assert all(one["count"] > 0 and one["per_second"] > 0 for one in found)


def test_measurements_over_websocket_are_refused(server: LocalCluster, files: Path) -> None:
    url = server.nodes[0].environment["WEBSOCKET"]
    refused = jetraft(url, files, "bench", "pub", "--count", "256", code=1)
    assert "measurements need a nats:// or tls:// connection" in refused


def test_a_subscription_survives_a_restart_of_the_server(
    server: LocalCluster, secure: str, files: Path
) -> None:
    to = Destination(servers=(secure,), ca=str(files / "ca.crt"))
    node = server.nodes[0]
    with connected(to, patience_s=WITHIN_S) as client:
        client.subscribe("news")
        client.flush()
        node.stop()
        node.start()
        node.wait_healthy()
        deadline = time.monotonic() + WITHIN_S
        message = None
        while message is None:
            assert time.monotonic() < deadline, "nothing came after the restart"
            with connected(to) as publisher:
                publisher.publish("news", b"again")
                publisher.flush()
            message = client.next(1.0)
    assert message.data == b"again"
