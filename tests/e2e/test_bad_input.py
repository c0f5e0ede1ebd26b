"""Bad input from a client, a peer, a directory or a port: a clear error, no harm to others."""

from __future__ import annotations

import json
import random
import re
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker.local import LocalCluster, LocalNode, free_ports, our_command
from tests.support.clusters import connect, eventually, run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("bad"), name="bad") as running:
        yield running


GARBAGE = [
    b"\x00" * 5000,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PUB a 99999999\r\n",
    b"PUB a -5\r\n",
    b"HPUB a 50 10\r\n",
    b"CONNECT {not json}\r\n",
    b"SUB " + b"a" * 10_000,
    b"SCAN {]\r\n",
    random.Random(1).randbytes(4096),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda g: repr(g[:20]))
def test_garbage_ends_its_own_connection_only(server: LocalCluster, garbage: bytes) -> None:
    node = server.nodes[0]

    async def work() -> None:
        good = await connect(node)
        with socket.create_connection(("127.0.0.1", node.client_port), timeout=10) as bad:
            bad.sendall(garbage)
            answer = await good.request("$JS.API.INFO", b"", timeout=10)
            assert json.loads(answer.data)["type"].endswith("account_info_response")
        await good.close()

    run(work)
    assert "Traceback" not in node.log_path.read_text()


ROUTE_GARBAGE = [
    b"INFO {}\r\n",
    struct.pack("<IB", 2**32 - 1, 1) + b"x" * 100,
    struct.pack("<IB", 0, 0),
    random.Random(2).randbytes(2000),
    b"\x00" * 64,
]


def test_garbage_on_the_route_port_disturbs_no_node(server: LocalCluster) -> None:
    """All at once: some of it looks like the start of a frame, and is closed by a timeout only."""
    node = server.nodes[1]
    with ExitStack() as connections:
        opened = [
            connections.enter_context(
                socket.create_connection(("127.0.0.1", node.route_port), timeout=60)
            )
            for _ in ROUTE_GARBAGE
        ]
        for connection, garbage in zip(opened, ROUTE_GARBAGE, strict=True):
            connection.sendall(garbage)
        for connection in opened:
            while connection.recv(4096):
                pass  # until the server closes it
    assert all(n.healthy() for n in server.nodes)
    assert "Traceback" not in node.log_path.read_text()


API_ERRORS = [
    ("STREAM.CREATE.BAD", b"{", 10025),
    ("STREAM.CREATE.BAD", b'{"name":"BAD","subjects":["a..b"]}', 10052),
    ("STREAM.CREATE.BAD", b'{"name":"OTHER"}', 10056),
    ("STREAM.CREATE.BAD", b'{"name":"BAD","unknown_field":1}', 10025),
    ("STREAM.CREATE.BAD", b'{"name":"BAD","num_replicas":9}', 10052),
    ("STREAM.CREATE.BAD", b'{"name":"BAD","max_age":-1}', 10052),
    ("STREAM.INFO.MISSING", b"", 10059),
    ("STREAM.DELETE.MISSING", b"", 10059),
    ("STREAM.MSG.GET.MISSING", b'{"seq":1}', 10059),
    ("CONSUMER.INFO.MISSING.x", b"", 10059),
]


@pytest.mark.parametrize(("subject", "body", "code"), API_ERRORS)
def test_the_api_refuses_with_the_error_codes_of_nats_server(
    server: LocalCluster, subject: str, body: bytes, code: int
) -> None:
    async def work() -> None:
        client = await connect(server.nodes[2])
        answer = await client.request(f"$JS.API.{subject}", body, timeout=10)
        assert json.loads(answer.data)["error"]["err_code"] == code
        await client.close()

    run(work)


def test_names_that_are_not_utf8_end_no_connection(server: LocalCluster) -> None:
    """Sent to every node, so that some are forwarded to the leader."""

    async def work() -> None:
        for node in server.nodes:
            client = await connect(node)
            if node is server.nodes[0]:
                await client.jetstream().add_stream(name="TEXT", subjects=["text"], num_replicas=3)
            for subject in (b"$JS.ACK.TEXT.\xff.1.1.1.1.1", b"$JS.FC.TEXT.\xff.x",
                            b"$JS.API.CONSUMER.MSG.NEXT.TEXT.\xff"):  # fmt: skip
                line = b"PUB " + subject + b" 0\r\n\r\nPING\r\n"
                with socket.create_connection(("127.0.0.1", node.client_port), timeout=10) as raw:
                    raw.sendall(b'CONNECT {"verbose":false}\r\n' + line * 2)
                    heard = b""
                    while heard.count(b"PONG") < 2:
                        part = raw.recv(4096)
                        assert part, "the server closed the connection"
                        heard += part
            await client.jetstream().publish("text", b"still here")
            await client.close()

    run(work)
    assert not any("UnicodeDecodeError" in node.log_path.read_text() for node in server.nodes)


def start_and_fail(node: LocalNode) -> str:
    done = subprocess.run(
        [*our_command(), "-c", str(node.directory / "server.conf")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def node_like(node: LocalNode, place: Path, name: str, *, cluster: str = "bad") -> LocalNode:
    client, http, route = free_ports(3)
    other = LocalNode(name, place / name, client, http, route, node.command)
    other.write_config(cluster=cluster, routes=[node.route_port])
    return other


def test_a_port_in_use_is_reported(server: LocalCluster, tmp_path: Path) -> None:
    node = server.nodes[0]
    other = node_like(node, tmp_path, "other")
    config = other.directory / "server.conf"
    config.write_text(
        re.sub(r'listen: "127.0.0.1:\d+"', f'listen: "{node.url[7:]}"', config.read_text(), count=1)
    )
    assert "address already in use" in start_and_fail(other)


def test_the_directory_of_another_node_is_refused(server: LocalCluster, tmp_path: Path) -> None:
    node = server.nodes[2]
    other = node_like(node, tmp_path, "thief")
    config = other.directory / "server.conf"
    node.kill()
    try:
        text = config.read_text().replace(
            str(other.directory / "data"), str(node.directory / "data")
        )
        config.write_text(text)
        assert 'belongs to server "bad-3", not to "thief"' in start_and_fail(other)
    finally:
        node.start()
        node.wait_healthy()


def test_a_node_of_another_cluster_is_refused_and_named(
    server: LocalCluster, tmp_path: Path
) -> None:
    stranger = node_like(server.nodes[0], tmp_path, "stranger", cluster="elsewhere")
    stranger.start()
    try:

        async def logged() -> bool:
            return "elsewhere" in server.nodes[0].log_path.read_text()

        run(lambda: eventually(logged, "a line in the log that names the other cluster"))
        assert all(node.healthy() for node in server.nodes)
    finally:
        stranger.kill()
