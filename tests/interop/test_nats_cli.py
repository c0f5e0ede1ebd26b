"""The official command-line tool, unchanged, against our server.

`nats` must be on the PATH, or named by NATS_CLI; without it these tests are skipped."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.local import LocalCluster
from tests.support.nats_tool import Cli, needs_the_tool

pytestmark = needs_the_tool


@pytest.fixture(params=["single", "three"])
def cli(request: pytest.FixtureRequest, tmp_path: Path) -> Cli:
    cluster: LocalCluster = request.getfixturevalue(request.param)
    return Cli(cluster.nodes[-1].url, tmp_path)


@pytest.fixture
def orders(cli: Cli) -> Iterator[str]:
    """A stream with ten messages."""
    cli("stream", "add", "ORDERS", "--subjects", "orders.*", "--defaults")
    cli("pub", "orders.us", "--count=10", "hi {{Count}}")
    yield "ORDERS"
    cli("stream", "rm", "ORDERS", "-f")
    assert "ORDERS" not in cli("stream", "ls")


def test_streams_are_listed_shown_and_read(cli: Cli, orders: str) -> None:
    assert orders in cli("stream", "ls")
    assert orders in cli("stream", "report")
    info = cli.json("stream", "info", orders)
    assert info["config"]["subjects"] == ["orders.*"]
    assert (info["state"]["first_seq"], info["state"]["last_seq"]) == (1, 10)
    assert info["state"]["messages"] == 10
    assert "Information for Stream ORDERS" in cli("stream", "info", orders)
    assert "hi 3" in cli("stream", "get", orders, "3")
    assert "hi 10" in cli("stream", "get", orders, "--last-for", "orders.us")
    assert "orders.us" in cli("stream", "subjects", orders)
    viewed = cli.on_a_terminal("stream", "view", orders, "25")
    assert all(f"hi {number}" in viewed for number in range(1, 11))
    assert "Reached apparent end of data" in viewed


def test_streams_are_edited_purged_and_lose_single_messages(cli: Cli, orders: str) -> None:
    cli("stream", "edit", orders, "--max-msgs", "5", "-f")
    assert cli.json("stream", "info", orders)["state"]["messages"] == 5
    cli("stream", "rmm", orders, "8", "-f")
    assert cli.json("stream", "info", orders)["state"]["num_deleted"] == 1
    cli("stream", "purge", orders, "-f")
    state = cli.json("stream", "info", orders)["state"]
    assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, 11, 10)


def test_pull_consumers(cli: Cli, orders: str) -> None:
    cli("consumer", "add", orders, "C", "--pull", "--defaults")
    assert "C" in cli("consumer", "ls", orders)
    assert cli("consumer", "next", orders, "C", "--raw").strip() == "hi 1"
    more = cli("consumer", "next", orders, "C", "--count", "3")
    assert [f"hi {number}" in more for number in (1, 2, 3, 4, 5)] == [
        False,
        True,
        True,
        True,
        False,
    ]
    info = cli.json("consumer", "info", orders, "C")
    assert info["delivered"]["stream_seq"] == info["ack_floor"]["stream_seq"] == 4
    assert info["num_pending"] == 6
    assert "Information for Consumer ORDERS > C" in cli("consumer", "info", orders, "C")
    assert "C" in cli("consumer", "report", orders)
    cli("consumer", "pause", orders, "C", "1h", "-f")
    assert cli.json("consumer", "info", orders, "C")["paused"] is True
    cli("consumer", "resume", orders, "C", "-f")
    cli("consumer", "rm", orders, "C", "-f")
    assert "No Consumers defined" in cli("consumer", "ls", orders)


def test_push_consumers_and_subscriptions_to_a_stream(cli: Cli, orders: str) -> None:
    cli("consumer", "add", orders, "P", "--target", "to.me", "--ack", "none", "--defaults")
    assert cli.json("consumer", "info", orders, "P")["config"]["deliver_subject"] == "to.me"
    got = cli("sub", "--stream", orders, "--all", "--count", "10", "--raw")
    assert [line for line in got.splitlines() if line.startswith("hi")] == [
        f"hi {number}" for number in range(1, 11)
    ]


def test_key_value_store(cli: Cli) -> None:
    cli("kv", "add", "B", "--history", "5")
    for value in ("one", "two"):
        assert cli("kv", "put", "B", "k", value).strip() == value
    assert cli("kv", "get", "B", "k", "--raw").strip() == "two"
    cli("kv", "create", "B", "fresh", "1")
    cli("kv", "update", "B", "fresh", "2", "3")
    assert sorted(cli("kv", "ls", "B").split()) == ["fresh", "k"]
    cli("kv", "del", "B", "k", "-f")
    history = cli("kv", "history", "B", "k")
    assert [word in history for word in ("one", "two", "DELETE")] == [True, True, True]
    assert cli("kv", "ls", "B").split() == ["fresh"]
    assert "B" in cli("kv", "ls")
    assert "History Kept: 5" in cli("kv", "info", "B")
    cli("kv", "purge", "B", "k", "-f")
    cli("kv", "rm", "B", "-f")


def test_key_value_watch(cli: Cli) -> None:
    cli("kv", "add", "W")
    cli("kv", "put", "W", "k", "before")
    with cli.running("kv", "watch", "W") as shown:
        assert shown.readline().rstrip().endswith("PUT W > k: before")
        cli("kv", "put", "W", "k", "after")
        cli("kv", "del", "W", "k", "-f")
        assert shown.readline().rstrip().endswith("PUT W > k: after")
        assert shown.readline().rstrip().endswith("DELETE W > k")
    cli("kv", "rm", "W", "-f")


def test_object_store(cli: Cli, tmp_path: Path) -> None:
    sent, received = tmp_path / "sent.bin", tmp_path / "received.bin"
    sent.write_bytes(os.urandom(1 << 20))
    cli("object", "add", "OB")
    cli("object", "put", "OB", str(sent), "--name", "thing", "--no-progress")
    assert "thing" in cli("object", "ls", "OB")
    assert "OB" in cli("object", "ls")
    cli("object", "get", "OB", "thing", "-O", str(received), "--no-progress")
    assert received.read_bytes() == sent.read_bytes()
    assert "thing" in cli("object", "info", "OB", "thing")
    cli("object", "rm", "OB", "thing", "-f")
    cli("object", "rm", "OB", "-f")


@pytest.mark.parametrize("how", ["sync", "async", "batch"])
def test_bench_publishes(cli: Cli, how: str) -> None:
    publish = ("bench", "js", "pub", how, "js.bench", "--create")
    assert "msgs/sec" in cli(*publish, "--msgs", "400", "--no-progress")
    assert cli.json("stream", "info", "benchstream")["state"]["messages"] == 400
    for kind in ("fetch", "consume", "ordered"):  # the first two share a durable consumer
        assert "msgs/sec" in cli("bench", "js", kind, "--msgs", "200", "--no-progress")
    cli("stream", "rm", "benchstream", "-f")


def test_a_stream_is_backed_up_and_restored(cli: Cli, orders: str, tmp_path: Path) -> None:
    cli("consumer", "add", orders, "C", "--pull", "--defaults")
    cli("consumer", "next", orders, "C", "--count", "4")
    copy = str(tmp_path / "copy")
    cli("stream", "backup", orders, copy, "--no-progress", "--consumers")
    cli("stream", "rm", orders, "-f")
    cli("stream", "restore", copy, "--no-progress")
    state = cli.json("stream", "info", orders)["state"]
    assert (state["messages"], state["last_seq"]) == (10, 10)
    assert cli("consumer", "next", orders, "C", "--raw").strip() == "hi 5"


def test_mirrors_and_sources(cli: Cli, orders: str) -> None:
    cli("stream", "add", "MIRROR", "--mirror", orders, "--defaults")
    cli("stream", "add", "AGGREGATE", "--source", orders, "--defaults")
    for name in ("MIRROR", "AGGREGATE"):
        got = cli("sub", "--stream", name, "--all", "--count", "10", "--raw")
        assert "hi 10" in got
        cli("stream", "rm", name, "-f")


def test_account_and_server_are_shown(cli: Cli, orders: str) -> None:
    shown = cli("account", "info")
    assert "Account: $G" in shown
    assert "JetStream Account Information" in shown
    assert re.search(r"Streams: [1-9]", shown)
    assert cli("server", "check", "jetstream").startswith("OK")
    assert cli("server", "check", "connection").startswith("OK")
    assert "nats://" in cli("rtt")
    assert orders in cli("stream", "ls", "--names")


def test_request_and_reply(cli: Cli) -> None:
    with cli.running("reply", "ask", "answer {{Request}}") as shown:
        assert "Listening on" in shown.readline()
        answers = (cli("request", "ask", "me", "--raw").strip() for _ in range(50))
        assert "answer me" in answers  # the first requests may arrive before its SUB: no responders
