"""Connections of the command: contexts, logins, failures, signals, terminals."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.cli.connect import contexts
from broker.cli.main import cli
from broker.cli.output.times import rfc3339, time_ns
from broker.cli.output.units import duration, duration_ns, size_bytes
from broker.local import LocalCluster
from tests.support.jetraft_command import as_json, jetraft, started
from tests.support.nats_tool import Cli, needs_the_tool


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize(
    ("text", "ns"),
    [("1h30m", 5400 * 10**9), ("90s", 90 * 10**9), ("2", 2 * 10**9), ("1.5s", 15 * 10**8),
     ("250ms", 25 * 10**7), ("1d", 86400 * 10**9), ("0", 0), ("1h 30m", None), ("h", None),
     ("-1s", None), ("1x", None), ("", None)],
)  # fmt: skip
def test_durations(text: str, ns: int | None) -> None:
    assert duration_ns(text) == ns
    if ns:
        assert duration_ns(duration(ns)) == ns


@pytest.mark.parametrize(
    ("text", "count"),
    [("10GiB", 10 << 30), ("1k", 1024), ("1KB", 1000), ("1.5MiB", 3 << 19), ("7", 7), ("7B", 7),
     ("1 GB", 10**9), ("GiB", None), ("1XB", None), ("-1", None)],
)  # fmt: skip
def test_sizes(text: str, count: int | None) -> None:
    assert size_bytes(text) == count


def test_times() -> None:
    for text in ("2026-01-02T03:04:05.000000006Z", "1970-01-01T00:00:00.000000000Z"):
        assert rfc3339(time_ns(text) or 0) == text
    assert time_ns("2026-01-02T03:04:05+01:00") == time_ns("2026-01-02T02:04:05Z")
    assert time_ns("0001-01-01T00:00:00Z") is None
    assert time_ns("2026-13-02T03:04:05Z") is None


# -- contexts --------------------------------------------------------------------------------


def test_a_context_is_saved_selected_and_used(ours: LocalCluster) -> None:
    run("context", "save", "here", "--server", ours.urls[0], "--user", "sys", "--password", "sys")
    assert contexts.selected() == ""  # a context is selected only on request
    run("context", "select", "here")
    assert "here*" in run("context", "ls")
    assert "ours-1" in run("info")
    shown = run("context", "show")
    assert "sys" in shown
    assert "***" in shown
    assert "ours-1" in run("info", "--context", "here", "--user", "ann", "--password", "secret")
    path = contexts.folder() / "context" / "here.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    run("context", "rm", "here")
    assert "no contexts" in run("context", "ls")
    assert contexts.selected() == ""


def test_the_password_of_a_context_stays_with_its_servers(ours: LocalCluster) -> None:
    """--server names another server than the selected context."""
    run("context", "save", "other", "--server", "nats://127.0.0.1:1", "--user", "sys",
        "--password", "wrong", "--select")  # fmt: skip
    assert as_json(ours.urls[0], "info")["jetstream"]["streams"] >= 0  # as ann, without a login
    said = run("info", "--context", "other", "-s", ours.urls[0], code=3)
    assert "refused the credentials" in said


def test_what_is_unknown_in_a_context_stays(tmp_path: Path) -> None:
    contexts.save("c", {"url": "nats://x", "color_scheme": "blue", "future": [1]})
    run("context", "save", "c", "--user", "ann")
    found = contexts.load("c")
    assert (found["color_scheme"], found["future"], found["user"]) == ("blue", [1], "ann")
    assert "there is no context d (known: c)" in run("info", "--context", "d", code=1)
    assert "cannot be the name" in run("context", "save", "../d", code=1)
    (contexts.folder() / "context" / "c.json").write_text("{")
    assert "c.json" in run("info", "--context", "c", code=1)


@needs_the_tool
def test_contexts_are_those_of_the_official_tool(ours: LocalCluster, tmp_path: Path) -> None:
    tool = Cli(ours.urls[0], tmp_path / "config")
    tool("context", "save", "theirs", "--server", ours.urls[0], "--user", "ann", "--password",
         "secret", "--select")  # fmt: skip
    assert contexts.selected() == "theirs"
    assert "ours-1" in run("info")
    run("context", "save", "mine", "--server", ours.urls[0], "--description", "a text", "--select")
    assert "a text" in tool("context", "ls")
    shown = json.loads(tool("context", "info", "mine", "--json"))
    assert shown["url"] == ours.urls[0]


# -- failures --------------------------------------------------------------------------------


def answering(text: bytes) -> tuple[str, socket.socket]:
    """The URL of a server that says this, once."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server.accept()[0] as client:
            client.sendall(text)
            client.recv(4096)

    threading.Thread(target=serve, daemon=True).start()
    return f"nats://127.0.0.1:{server.getsockname()[1]}", server


def test_every_failed_connection_has_its_own_sentence(url: str) -> None:
    listening, server = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with server:
        sentences = [
            run("stream", "ls", "-s", url, "--user", "ann", "--password", "wrong", code=3),
            run("stream", "ls", "-s", "nats://no.such.host.invalid", code=3),
            run("stream", "ls", "-s", "nats://127.0.0.1:1", code=3),
            run("stream", "ls", "-s", "http://127.0.0.1:4222", code=3),
            run("stream", "ls", "-s", listening, code=3),
            run("stream", "ls", "-s", url, "--tlsca", __file__, code=1),
        ]
    expected = (
        "the server refused the credentials: Authorization Violation",
        "the name of the server is unknown",
        "nobody listens there: connection refused",
        "the scheme must be one of nats, tls, ws, wss",
        "it answers, but is not a NATS server",
        "cannot use the certificates",
    )
    for sentence, words in zip(sentences, expected, strict=True):
        assert words in sentence
        assert sentence.count("\n") == 1


def test_the_next_server_is_tried(url: str) -> None:
    both = f"nats://127.0.0.1:1,{url}"
    assert "connected to" in run("info", "-s", both)
    measured = run("rtt", "--count", "1", "-s", both)
    assert "connection refused" in measured
    assert url in measured


def test_passwords_in_urls_are_used_and_not_shown(url: str) -> None:
    right = url.replace("nats://", "nats://ann:secret@")
    assert "secret" not in jetraft(right, "info")
    wrong = url.replace("nats://", "nats://ann:wrong@")
    assert "wrong" not in jetraft(wrong, "info", code=3)


def test_no_jetstream_is_one_line(url: str) -> None:
    said = run("stream", "ls", "-s", url, "--user", "sys", "--password", "sys", code=1)
    assert said == "Error: JetStream not enabled for account (10039)\n"


# -- signals and pipes ------------------------------------------------------------------------


def test_ctrl_c_ends_without_a_traceback(ours: LocalCluster) -> None:
    with started(ours.urls[0], "sub", "nothing.*") as child:
        assert child.stderr is not None
        assert child.stderr.readline() == "listening on nothing.*\n"
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in errors


def test_a_broken_pipe_ends_without_a_traceback(ours: LocalCluster) -> None:
    with started(ours.urls[0], "sub", "pipe") as child:
        assert child.stderr is not None
        assert child.stdout is not None
        assert child.stderr.readline() == "listening on pipe\n"
        child.stdout.close()
        jetraft(ours.urls[0], "pub", "pipe", "x")
        assert child.wait(60) == 141
        assert child.stderr.read() == ""


# -- terminals ---------------------------------------------------------------------------------


def at_a_terminal(words: list[str], *, columns: int, typed: bytes = b"") -> str:
    """Run the command at a terminal of this width and return what it shows."""
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "broker", *words],
        stdin=follower, stdout=follower, stderr=follower,
        env={**os.environ, "COLUMNS": str(columns), "TERM": "xterm"},
    )  # fmt: skip
    os.close(follower)
    os.write(leader, typed)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(leader)
    child.wait(60)
    return shown.decode().replace("\r\n", "\n")


def test_a_narrow_terminal_gets_blocks(ours: LocalCluster) -> None:
    url = ours.urls[0]
    if "NARROW" not in as_json(url, "stream", "ls", "--names"):
        jetraft(url, "stream", "add", "NARROW", "--subjects", "narrow")
    shown = at_a_terminal(["stream", "ls", "--subject", "narrow", "-s", url], columns=40)
    assert max(len(line) for line in shown.splitlines()) <= 40 + len("\x1b[1m\x1b[0m")
    assert "  subjects   narrow" in shown
    wide = at_a_terminal(["stream", "ls", "--subject", "narrow", "-s", url], columns=120)
    assert "name    storage" in wide


def test_questions_at_a_terminal(ours: LocalCluster) -> None:
    """The dialog of the first `jsm add`."""
    url = ours.urls[0]
    typed = b"ASKED\nfoo.asked bar.asked\n-1 -1 1m\nmemory\n"
    shown = at_a_terminal(["stream", "add", "-s", url], columns=80, typed=typed)
    assert "Subjects: " in shown
    config = as_json(url, "stream", "info", "ASKED")["config"]
    assert config["subjects"] == ["foo.asked", "bar.asked"]
    assert (config["max_age"], config["storage"]) == (60 * 10**9, "memory")
    refused = at_a_terminal(["stream", "rm", "ASKED", "-s", url], columns=80, typed=b"n\n")
    assert "nothing was done" in refused
    at_a_terminal(["stream", "rm", "ASKED", "-s", url], columns=80, typed=b"y\n")
    assert "ASKED" not in as_json(url, "stream", "ls", "--names")
