"""The process: flags, files, signals, and the log lines that tools read."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import tomllib
from pathlib import Path

import pytest

from broker.config.options import VERSION
from tests.support.server import PATIENCE, ROOT, Process


def connect(port: int, host: str = "127.0.0.1") -> tuple[socket.socket, str]:
    sock = socket.create_connection((host, port), timeout=PATIENCE)
    return sock, sock.makefile("rb").readline().decode()


def test_ready_lines_and_clean_exit() -> None:
    with Process("-p", "-1", "-a", "127.0.0.1", "--server_name=tester") as process:
        found = re.search(r"Listening for client connections on (.+):(\d+)", process.log)
        assert found is not None
        assert found[1] == "127.0.0.1"
        sock, info = connect(process.port)
        assert '"server_name":"tester"' in info
        sock.close()
        assert process.end(signal.SIGTERM) == 0
        assert "Initiating Shutdown..." in process.log
        assert "Server Exiting.." in process.log
        pattern = r"\[\d+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} \[INF\] Starting JetRaft"
        assert re.match(pattern, process.log)
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert f"Version:  {project['version']}" in process.log
        assert process.log.count("nats-server") == 1  # the line that names the protocol


def test_wildcard_bind_answers_on_both_families() -> None:
    with Process("--port=-1") as process:
        assert "on 0.0.0.0:" in process.log
        sock, info = connect(process.port)
        assert '"client_ip":"127.0.0.1"' in info
        assert '"host":"0.0.0.0"' in info
        sock.close()
        if socket.has_ipv6 and Path("/proc/net/if_inet6").exists():
            sock, info = connect(process.port, "::1")
            assert '"client_ip":"::1"' in info
            sock.close()
        assert process.end(signal.SIGINT) == 0


def test_ipv6_host_is_bracketed() -> None:
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    with Process("--addr", "::1", "--port", "-1") as process:
        assert re.search(r"connections on \[::1\]:\d+", process.log)
        process.end()


def test_port_in_use_is_fatal_and_names_the_port() -> None:
    with Process("-p", "-1", "-a", "127.0.0.1") as first:
        with Process("-p", str(first.port), "-a", "127.0.0.1", ready=False) as second:
            assert second.child.wait(PATIENCE) == 1
            _, log = second.drain()
            assert "[FTL] Error listening on port" in log
            assert "bind: address already in use" in log
            assert "Traceback" not in log
        first.end()


def test_unknown_host_is_fatal() -> None:
    with Process("-p", "-1", "-a", "no.such.host.invalid", ready=False) as process:
        assert process.child.wait(PATIENCE) == 1
        _, log = process.drain()
        assert "[FTL]" in log
        assert "Traceback" not in log


@pytest.mark.parametrize("words", [["--version"], ["-v"], ["version"]])
def test_version_goes_to_stdout(words: list[str]) -> None:
    with Process(*words, ready=False) as process:
        assert process.child.wait(PATIENCE) == 0
        out, _ = process.drain()
        assert out == f"nats-server: v{VERSION}\n"


def test_unknown_flag_and_unknown_word() -> None:
    with Process("--nonsense", ready=False) as process:
        assert process.child.wait(PATIENCE) == 0
        _, log = process.drain()
        assert "flag provided but not defined: -nonsense" in log
    with Process("dance", ready=False) as process:
        assert process.child.wait(PATIENCE) == 1
        _, log = process.drain()
        assert log == 'nats-server: unrecognized command: "dance"\n'


def test_files_are_written_and_removed(tmp_path: Path) -> None:
    config = tmp_path / "c.conf"
    config.write_text(
        f'host: 127.0.0.1\nport: -1\nhttp: "127.0.0.1:-1"\nports_file_dir: {tmp_path}\n'
        f"pid_file: {tmp_path}/pid\n"
    )
    with Process("-c", str(config)) as process:
        pid = process.child.pid
        ports = tmp_path / f"nats-server_{pid}.ports"
        process.wait_for("ready")
        while not ports.exists():
            assert process.child.poll() is None
        found = json.loads(ports.read_text())
        assert found["nats"] == [f"nats://127.0.0.1:{process.port}"]
        assert found["monitoring"][0].startswith("http://127.0.0.1:")
        assert (tmp_path / "pid").read_text() == str(pid)
        assert process.end() == 0
        assert not ports.exists()


def test_configuration_check(tmp_path: Path) -> None:
    good = tmp_path / "good.conf"
    good.write_text("port: 4567")
    with Process("-t", "-c", str(good), ready=False) as process:
        assert process.child.wait(PATIENCE) == 0
        _, log = process.drain()
        assert re.fullmatch(
            rf"nats-server: configuration file {good} is valid \(sha256:[0-9a-f]{{64}}\)\n", log
        )
    bad = tmp_path / "bad.conf"
    bad.write_text("port: {\n")
    with Process("-c", str(bad), ready=False) as process:
        assert process.child.wait(PATIENCE) == 1
        _, log = process.drain()
        assert log.startswith("nats-server: Parse error on line 2: ")


def test_lame_duck_tells_clients_once_and_ignores_sigterm() -> None:
    with Process("-p", "-1", "-a", "127.0.0.1", "-D") as process:
        sock, _ = connect(process.port)
        stream = sock.makefile("rb")
        sock.sendall(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
        assert stream.readline() == b"PONG\r\n"
        assert b'"connect_info":true' in stream.readline()
        process.child.send_signal(signal.SIGUSR2)
        assert b'"ldm":true' in stream.readline()
        process.child.send_signal(signal.SIGUSR2)
        process.child.send_signal(signal.SIGTERM)
        process.wait_for('Trapped "terminated" signal')
        sock.sendall(b"PING\r\n")
        assert stream.readline() == b"PONG\r\n"
        with pytest.raises(ConnectionRefusedError):
            connect(process.port)
        assert process.end(signal.SIGINT) == 0
        sock.close()


def test_lame_duck_without_clients_exits_at_once() -> None:
    with Process("-p", "-1", "-a", "127.0.0.1") as process:
        assert process.end(signal.SIGUSR2) == 0
        assert "Entering lame duck mode" in process.log


def test_reload_drops_users_and_keeps_the_others(tmp_path: Path) -> None:
    config = tmp_path / "c.conf"

    def write(users: str) -> None:
        first = "{user: a, password: a}"
        config.write_text(
            f'listen: "127.0.0.1:-1"\nauthorization {{ users: [ {first}, {users} ] }}\n'
        )

    def login(name: str) -> tuple[socket.socket, object]:
        sock, _ = connect(process.port)
        stream = sock.makefile("rb")
        text = json.dumps({"verbose": False, "user": name, "pass": name})
        sock.sendall(f"CONNECT {text}\r\nSUB foo 5\r\nPING\r\n".encode())
        assert stream.readline() == b"PONG\r\n"
        return sock, stream

    write("{user: b, password: b}")
    with Process("-c", str(config)) as process:
        one, one_stream = login("a")
        two, two_stream = login("b")
        write("{user: c, password: c, permissions: {subscribe: [x]}}")
        process.child.send_signal(signal.SIGHUP)
        process.wait_for("Reloaded server configuration")
        assert two_stream.readline() == b"-ERR 'Authorization Violation'\r\n"  # type: ignore[attr-defined]
        assert two_stream.readline() == b""  # type: ignore[attr-defined]
        one.sendall(b"PING\r\n")
        assert one_stream.readline() == b"PONG\r\n"  # type: ignore[attr-defined]
        config.write_text("nonsense {")
        process.child.send_signal(signal.SIGHUP)
        process.wait_for("Failed to reload server configuration: Parse error")
        one.sendall(b"PING\r\n")
        assert one_stream.readline() == b"PONG\r\n"  # type: ignore[attr-defined]
        process.end()
        one.close()
        two.close()


def test_log_file_is_reopened(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    with Process("-p", "-1", "-a", "127.0.0.1", "-l", str(path), ready=False) as process:
        while not (path.exists() and "Server is ready" in path.read_text()):
            assert process.child.poll() is None
        path.rename(tmp_path / "old.log")
        process.child.send_signal(signal.SIGUSR1)
        while not (path.exists() and "re-opened" in path.read_text()):
            assert process.child.poll() is None
        process.end()


def test_a_log_file_that_cannot_be_reopened_stays_in_use(tmp_path: Path) -> None:
    path, moved = tmp_path / "server.log", tmp_path / "old.log"
    with Process("-p", "-1", "-a", "127.0.0.1", "-l", str(path), ready=False) as process:
        while not (path.exists() and "Server is ready" in path.read_text()):
            assert process.child.poll() is None
        path.rename(moved)
        path.mkdir()
        process.child.send_signal(signal.SIGUSR1)
        while "Could not reopen the log file" not in moved.read_text():
            assert process.child.poll() is None
        process.end()
        assert "Server Exiting.." in moved.read_text()
        assert "re-opened" not in moved.read_text()


def test_a_full_stderr_pipe_does_not_block_the_server() -> None:
    with Process("-p", "-1", "-a", "127.0.0.1", "-DV") as process:
        sock, _ = connect(process.port)
        stream = sock.makefile("rb")
        sock.sendall(b'CONNECT {"verbose":false,"pass":"hush"}\r\nSUB foo 1\r\nPING\r\n')
        assert stream.readline() == b"PONG\r\n"
        process.wait_for("<<- [SUB foo 1]")
        assert "hush" not in process.log
        for _ in range(50):  # far more than a pipe holds, and it is not read
            sock.sendall(b"PUB foo 1000\r\n" + b"x" * 1000 + b"\r\n" + b"PING\r\n")
            assert stream.readline() == b"MSG foo 1 1000\r\n"
            stream.readline()
            assert stream.readline() == b"PONG\r\n"
        assert os.waitpid(process.child.pid, os.WNOHANG) == (0, 0)
        sock.close()
        process.end()


def test_a_store_that_cannot_be_opened_is_fatal(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with Process("-p", "-1", "-js", "-sd", str(blocker), ready=False) as process:
        assert process.child.wait(PATIENCE) == 1
        _, log = process.drain()
        assert "[FTL]" in log
