"""`jetraft pub`, `sub` and `consumer next` against one server of ours."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from broker.cli.main import cli
from broker.local import LocalCluster


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Started from a folder that has a package `broker` of its own, which must not run."""
    (place := tmp_path_factory.mktemp("project")).joinpath("broker").mkdir()
    (place / "broker" / "__init__.py").write_text("raise SystemExit('not this one')")
    cluster = LocalCluster(tmp_path_factory.mktemp("cli"), size=1)
    with contextlib.chdir(place):
        cluster.start()
    yield cluster.urls[0]
    cluster.stop()


def run(url: str, *words: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, [*words, "-s", url])
    assert result.exit_code == code, result.output
    return result.output.strip()


def test_a_subscriber_without_a_stream_gets_the_message_once(url: str) -> None:
    words = [sys.executable, "-m", "broker", "sub", "greet.*", "--count", "2", "-s", url]
    listener = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ), text=True
    )
    try:
        assert listener.stderr is not None
        assert listener.stderr.readline() == "listening on greet.*\n"
        said = run(url, "pub", "greet.you", "hello {{Count}}", "--count", "2")
        assert said.splitlines() == 2 * ["published to greet.you (no stream stores it)"]
        heard, _ = listener.communicate(timeout=60)
        assert heard.splitlines() == ["[1] greet.you: hello 1", "[2] greet.you: hello 2"]
    finally:
        listener.kill()
        listener.wait()


def test_the_stream_that_stores_a_message_is_named(url: str) -> None:
    run(url, "stream", "add", "KEPT", "--subjects", "kept.*")
    assert run(url, "pub", "kept.a", "x") == "stored in KEPT as 1"
    header = ("--header", "Nats-Msg-Id: once")
    assert run(url, "pub", "kept.a", "x", *header) == "stored in KEPT as 2"
    assert run(url, "pub", "kept.a", "x", *header) == "stored in KEPT as 2 (duplicate)"


def test_a_missing_stream_or_consumer_is_named(url: str) -> None:
    run(url, "stream", "add", "BARE", "--subjects", "bare")
    said = run(url, "consumer", "next", "BARE", "nobody", code=1)
    assert said == "Error: consumer not found (10014)"
    said = run(url, "consumer", "next", "NOWHERE", "nobody", code=1)
    assert said == "Error: stream not found (10059)"


def test_a_message_cannot_control_the_terminal(url: str) -> None:
    run(url, "stream", "add", "TERMINAL", "--subjects", "terminal.>")
    run(url, "pub", "terminal.\x1b[7m", "\x1b[2J\x1b]0;title\x07{\n\t1}")
    run(url, "consumer", "add", "TERMINAL", "reader")
    shown = run(url, "consumer", "next", "TERMINAL", "reader")
    assert shown == "[1] terminal.\\x1b[7m: \\x1b[2J\\x1b]0;title\\x07{\n\t1}"
