"""Local clusters, with a small script in place of the server so that a start is cheap."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.bench.peers import nats_server_command
from broker.config.load import load, parse_flags
from broker.local import (
    PORTS,
    LocalCluster,
    LocalNode,
    NodeFailed,
    PortBlock,
    free_ports,
    our_command,
)

# Reads its http port from the configuration file and answers every request alike.
STAND_IN = """
import re, socket, sys
text = open(sys.argv[-1]).read()
port = int(re.search(r'http: "127.0.0.1:(\\d+)"', text)[1])
name = re.search(r'server_name: (\\S+)', text)[1]
server = socket.create_server(("127.0.0.1", port))
print("listening", flush=True)
{extra}
while True:
    with server.accept()[0] as client:
        client.recv(4096)
        client.sendall(b"{answer}".replace(b"NAME", name.encode()))
"""
HEALTHY = r"HTTP/1.0 200 OK\r\n\r\n{\"status\":\"ok\",\"server_name\":\"NAME\"}"


def stand_in(answer: str = HEALTHY, extra: str = "") -> list[str]:
    script = STAND_IN.replace("{answer}", answer).replace("{extra}", extra)
    return [sys.executable, "-S", "-E", "-c", script]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.002)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


@pytest.fixture
def one(tmp_path: Path) -> LocalNode:
    cluster = LocalCluster(tmp_path, size=1, command=stand_in())
    cluster.prepare()
    return cluster.nodes[0]


def test_a_cluster_starts_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, size=3, name="c", command=stand_in()) as cluster:
        assert [node.name for node in cluster.nodes] == ["c-1", "c-2", "c-3"]
        assert all(node.healthy() for node in cluster.nodes)
        assert len(set(cluster.urls)) == 3
        pids = [node.pid for node in cluster.nodes]
        paused = cluster.nodes[1].process
        assert paused is not None
        cluster.nodes[0].kill()
        cluster.nodes[1].pause()  # stopping a paused node must not hang
        until(lambda: stopped(pids[1]))
    assert not any(alive(pid) for pid in pids)
    assert all(node.process is None for node in cluster.nodes)
    assert paused.returncode == -signal.SIGTERM  # it was resumed, not killed
    cluster.stop()  # a second stop does nothing


def test_a_node_is_killed_and_started_again(one: LocalNode) -> None:
    one.start()
    one.wait_healthy()
    first = one.pid
    one.kill()
    assert not alive(first)
    assert not one.healthy()
    one.start()
    one.wait_healthy()
    assert one.pid != first
    assert one.log_path.read_text().count("listening") == 2  # the log is appended to
    one.stop()
    one.stop()


def test_pause_and_resume(one: LocalNode) -> None:
    one.start()
    one.wait_healthy()
    one.pause()
    until(lambda: stopped(one.pid))
    one.resume()
    until(lambda: not stopped(one.pid))
    assert one.healthy()
    # A node that has ended gets no signal: its process id may belong to another process.
    os.kill(one.pid, signal.SIGKILL)
    assert one.process is not None
    one.process.wait()
    one.pause()
    one.resume()
    one.stop()


def test_a_node_that_exits_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", "raise SystemExit('the disk is on fire')"]
    cluster = LocalCluster(tmp_path, size=2, command=command)
    with pytest.raises(NodeFailed, match="local-1 exited: the disk is on fire"), cluster:
        pytest.fail("it cannot have started")
    assert all(node.process is None for node in cluster.nodes)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        r"nonsense\r\n\r\n",
        r"HTTP/1.0 503 no\r\n\r\n{}",
        r"HTTP/1.0 200 OK\r\n\r\n{\"status\":1}",
        r"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n{\"status\":\"ok\"}",
    ],
    ids=["closed", "not http", "unavailable", "not ok", "cut short"],
)
def test_any_other_answer_is_not_healthy(tmp_path: Path, answer: str) -> None:
    cluster = LocalCluster(tmp_path, size=1, command=stand_in(answer))
    cluster.prepare()
    node = cluster.nodes[0]
    node.start()
    try:
        until(lambda: "listening" in node.log_tail())
        assert not node.healthy()
        with pytest.raises(NodeFailed, match=r"not healthy in 0 s: listening"):
            node.wait_healthy(timeout_s=0)
    finally:
        node.stop()


def test_a_command_that_does_not_exist_leaves_nothing_behind(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, size=2, command=stand_in())
    cluster.prepare()
    cluster.nodes[1].command = ["/does/not/exist"]
    with pytest.raises(FileNotFoundError):
        cluster.start()
    assert cluster.nodes[0].process is None


def test_an_interrupted_start_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def interrupted(self: LocalNode, **_: object) -> None:
        pids.append(self.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalNode, "wait_healthy", interrupted)
    cluster = LocalCluster(tmp_path, size=2, command=stand_in())
    with pytest.raises(KeyboardInterrupt):
        cluster.start()
    assert pids
    assert not any(alive(pid) for pid in pids)


def test_a_node_that_ignores_sigterm_is_killed(
    one: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.local.STOP_WITHIN_S", 0.05)
    one.command = stand_in(extra="import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    one.start()
    one.wait_healthy()
    pid = one.pid
    one.stop()
    assert not alive(pid)


def twenty_ports() -> range:
    """Numbers that no other test uses; another process that runs this test has others."""
    first = 10_000 + os.getpid() % 200 * 20
    return range(first, first + 20)


def test_ports_are_distinct_and_free() -> None:
    block = PortBlock(twenty_ports(), 20)
    ports = block.free(6)
    assert len(set(ports)) == 6
    with socket.create_server(("127.0.0.1", ports[0])):
        assert sorted(block.free(19)) == sorted(set(block.ports) - {ports[0]})
        with pytest.raises(OSError, match="fewer than 20"):
            block.free(20)
    assert len(set(free_ports(9))) == 9


def test_two_processes_are_never_given_the_same_ports() -> None:
    ports = range(twenty_ports().start - 4_000, twenty_ports().stop - 4_000)
    claimed = [PortBlock(ports, 10), PortBlock(ports, 10)]
    assert sorted(port for block in claimed for port in block.ports) == list(ports)
    script = f"from broker.local import PortBlock; PortBlock({ports}, 10)"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert b"claimed by another process" in other.stderr


def test_ports_are_not_those_of_outgoing_connections() -> None:
    """A node that is down for a moment must find its port free when it starts again."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if first < 32_768:
        pytest.skip("this machine takes ports of outgoing connections from a larger range")
    assert max(PORTS) < first


def test_a_missing_log_is_reported(one: LocalNode) -> None:
    assert one.log_tail() == "(no log)"


def test_a_fatal_error_is_told_without_what_was_logged_before_it(one: LocalNode) -> None:
    one.directory.mkdir(parents=True, exist_ok=True)
    one.log_path.write_text("[1] 2026/01/02 [INF] Starting\n")
    assert one.why_ended() == "[1] 2026/01/02 [INF] Starting"
    one.log_path.write_text("[1] 2026/01/02 [INF] Starting\n[1] 2026/01/02 [FTL] port in use\n")
    assert one.why_ended() == "port in use"


def test_our_command_is_this_python() -> None:
    assert our_command() == [sys.executable, "-P", "-m", "broker", "serve"]


def test_the_configuration_is_one_that_both_servers_read(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, size=3, name="c", jetstream="max_file_store: 1GB")
    cluster.prepare()
    routes = [node.route_port for node in cluster.nodes]
    for node in cluster.nodes:
        path = node.directory / "server.conf"
        options = load(parse_flags(["-c", str(path)])).options
        assert (options.server_name, options.port) == (node.name, node.client_port)
        assert options.jetstream is not None
        assert options.jetstream.store_dir == str(node.directory / "data")
        assert options.cluster is not None
        assert (options.cluster.name, options.cluster.port) == ("c", node.route_port)
        assert [int(url.rpartition(":")[2]) for url in options.cluster.routes] == routes
    try:
        theirs = nats_server_command()
    except FileNotFoundError as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))
    checked = subprocess.run([*theirs, "-t", "-c", str(path)], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_a_single_node_has_no_cluster(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, size=1, ports=[1, 2, 3])
    cluster.prepare()
    assert cluster.urls == ["nats://127.0.0.1:1"]
    assert "cluster" not in (cluster.nodes[0].directory / "server.conf").read_text()


def test_another_server_on_the_port_is_not_ours(tmp_path: Path) -> None:
    """Ours exits because the port is taken; the answers of the other server must not count."""
    other = LocalCluster(tmp_path / "other", size=1, name="other", command=stand_in())
    with other:
        node = other.nodes[0]
        ports = [node.client_port, node.http_port, node.route_port]
        ours = LocalCluster(tmp_path / "ours", size=1, name="ours", command=stand_in(), ports=ports)
        with pytest.raises(NodeFailed, match="ours-1 exited"):
            ours.start()
