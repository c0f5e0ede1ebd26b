"""`jetraft up`, and what commands that start servers do when they get a signal."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker.cli.main import cli
from broker.cli.output.tables import table
from broker.cli.output.units import age, counted, size
from broker.cli.servers import _is_server
from broker.cli.streams.description import print_stream
from broker.local import LocalCluster, NodeFailed
from tests.cli.test_local import stand_in
from tests.support.clusters import port_for_up

WITHIN_S = 60


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A directory with the configuration files of two nodes."""
    port = port_for_up()
    ports = [p for i in range(2) for p in (port + i, port + 4000 + i, port + 2000 + i)]
    LocalCluster(tmp_path / "run", size=2, name="local", ports=ports).prepare()
    return tmp_path / "run"


def up(place: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["up", "--detach", "--dir", str(place), *words])


@pytest.mark.parametrize(
    ("words", "known"), [(("--nodes", "3"), "--nodes 2"), (("--port", "7000"), "--port")]
)
def test_an_existing_cluster_keeps_its_size_and_ports(
    prepared: Path, words: tuple[str, ...], known: str
) -> None:
    before = {path: path.read_text() for path in prepared.rglob("server.conf")}
    result = up(prepared, *words)
    assert result.exit_code == 1
    assert f"holds a cluster with {known}" in result.output
    assert "--fresh" in result.output
    assert {path: path.read_text() for path in prepared.rglob("server.conf")} == before


def test_existing_configuration_files_are_used_unchanged(prepared: Path) -> None:
    for path in prepared.rglob("server.conf"):
        path.write_text(path.read_text() + "\nwhat_is_this: 1\n")
    result = up(prepared)
    assert result.exit_code == 1
    assert 'unknown field "what_is_this"' in result.output  # so the edited files were read


def test_a_port_of_another_program_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Another cluster has nodes of the same names: they would answer for ours."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = up(tmp_path / "run", "--port", str(port))
    assert result.exit_code == 1
    assert f"another program listens on port {port};" in result.output
    assert not (tmp_path / "run").exists()


@pytest.fixture
def running(prepared: Path) -> Iterator[dict[str, int]]:
    """Processes in place of the two nodes."""
    command = [sys.executable, "-S", "-c", "input()", "broker", "serve"]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
    pids = {f"local-{number}": child.pid for number, child in enumerate(children, 1)}
    (prepared / "cluster.json").write_text(json.dumps(pids))
    # A process that has just been started has no command line for a moment.
    until(lambda: all(map(_is_server, pids.values())), "they are taken for servers")
    yield pids
    ended = [child.poll() for child in children]
    for child in children:
        child.communicate(b"")
    assert ended == [None, None], "nodes of another command were stopped"


def test_up_leaves_nodes_alone_that_are_running(prepared: Path, running: dict[str, int]) -> None:
    result = CliRunner().invoke(cli, ["up", "--dir", str(prepared)])
    assert result.exit_code == 0
    assert "running already; `jetraft down` stops them" in result.output
    assert json.loads((prepared / "cluster.json").read_text()) == running


def test_ctrl_c_stops_what_this_up_has_started(
    prepared: Path, running: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others stay, and `down` still knows them."""
    there = {"local-1": running["local-1"]}
    (prepared / "cluster.json").write_text(json.dumps(there))
    known: list[dict[str, int]] = []

    def interrupted() -> None:
        known.append(json.loads((prepared / "cluster.json").read_text()))
        raise SystemExit(130)

    cluster = partial(LocalCluster, command=stand_in())
    monkeypatch.setattr("broker.local.LocalCluster", cluster)
    monkeypatch.setattr(signal, "pause", interrupted)
    result = CliRunner().invoke(cli, ["up", "--dir", str(prepared)])
    assert result.exit_code == 130
    assert "Ctrl-C stops local-2; `jetraft down` stops the others." in result.output
    assert known[0].keys() == {"local-1", "local-2"}
    assert not Path(f"/proc/{known[0]['local-2']}").exists()
    assert json.loads((prepared / "cluster.json").read_text()) == there


def test_an_error_shows_only_log_lines_of_this_start(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", "raise SystemExit('now')"]
    cluster = LocalCluster(tmp_path, size=1, command=command)
    cluster.prepare()
    cluster.nodes[0].log_path.write_text("an error of last week\n")
    with pytest.raises(NodeFailed) as failure:
        cluster.start()
    assert str(failure.value) == "local-1 exited: now"


# -- signals --------------------------------------------------------------------------------


def servers_of(place: Path) -> list[int]:
    """Processes that run a server of this directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue  # the process has ended
        if any(word.startswith(os.fsencode(place)) for word in words):
            found.append(int(path.parent.name))
    return found


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "words", [("bench", "peers", "--only", "R1 file 128 B, window"), ("chaos", "run", "pause")]
)
def test_a_command_that_gets_a_signal_leaves_no_servers(
    tmp_path: Path, words: tuple[str, ...], number: signal.Signals
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "broker", *words],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: bool(servers_of(tmp_path)), "a server runs")
        child.send_signal(number)
        assert child.wait(WITHIN_S) == 128 + number
        assert servers_of(tmp_path) == []
        assert list(tmp_path.iterdir()) == []
    finally:
        child.kill()
        child.wait()


def test_waiting_for_a_node_ends_when_it_is_stopped(tmp_path: Path) -> None:
    """Ctrl-C stops the nodes while a thread still waits for their health."""
    cluster = LocalCluster(tmp_path, size=1, command=[sys.executable, "-S", "-c", "input()"])
    cluster.prepare()
    cluster.stop()
    with pytest.raises(NodeFailed, match="local-1 was stopped"):
        cluster.nodes[0].wait_healthy(timeout_s=WITHIN_S)


def test_a_signal_waits_until_a_new_process_is_recorded(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, size=1, command=[sys.executable, "-S", "-c", "input()"])
    cluster.prepare()
    node = cluster.nodes[0]
    known: list[object] = []
    before = signal.signal(signal.SIGTERM, lambda *_: known.append(node.process))
    popen = subprocess.Popen

    def interrupted(*args: object, **settings: object) -> object:
        signal.raise_signal(signal.SIGTERM)
        return popen(*args, **settings)  # type: ignore[call-overload]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subprocess, "Popen", interrupted)
        try:
            node.start()
        finally:
            signal.signal(signal.SIGTERM, before)
    assert known == [node.process] != [None]
    node.stop()


# -- tables ------------------------------------------------------------------------------------


def test_a_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    table(("name", "messages", "size"), [("A", 5, "1 B"), ("LONGER", 12345, "2 B")], empty="none")
    assert capsys.readouterr().out.splitlines() == [
        "name    messages  size",
        "------  --------  ----",
        "A              5  1 B",
        "LONGER    12,345  2 B",
    ]
    table(("name",), [], empty="none")
    assert capsys.readouterr().out == "none\n"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 chunks"), (1, "1 chunk"), (2000, "2,000 chunks")]
)
def test_counts(count: int, text: str) -> None:
    assert counted(count, "chunk") == text


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({}, "none"),
        ({"messages": 0, "bytes": 0, "first_seq": 8, "last_seq": 7},
         "0 (0 B), the last sequence was 7"),
        ({"messages": 2, "bytes": 90, "first_seq": 1, "last_seq": 2}, "2 (90 B), sequences 1 to 2"),
    ],
)  # fmt: skip
def test_messages_of_a_stream(
    state: dict[str, int], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_stream({"config": {"name": "S", "storage": "file"}, "state": state})
    line = next(line for line in capsys.readouterr().out.splitlines() if "messages" in line)
    assert line.split(maxsplit=1) == ["messages", text]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.00s"), (1.5, "1.50s"), (130, "2m10s"), (3600, "1h0m"), (273_600, "3d4h")],
)
def test_ages(seconds: float, text: str) -> None:
    assert age(seconds) == text
