"""`jetraft server`, `account` and `migrate` against our server and against nats-server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from broker.cli.connect.client_shape import CommandClient
from broker.cli.streams.digest import StreamDigest
from broker.cli.streams.verification import checked_stream
from broker.local import LocalCluster
from tests.support.jetraft_command import as_json, jetraft

SYSTEM = ("--user", "sys", "--password", "sys")


def test_servers(url: str) -> None:
    name = as_json(url, "info")["server"]["server_name"]
    assert jetraft(url, "server", "ls", *SYSTEM).splitlines()[-1].split()[0] == name
    assert f"server {name}" in jetraft(url, "server", "info", *SYSTEM)
    assert as_json(url, "server", "info", name, *SYSTEM)["server_name"] == name
    jetraft(url, "server", "info", "nobody", *SYSTEM, "--timeout", "300ms", code=4)
    report = as_json(url, "server", "report", *SYSTEM)
    assert report[0]["data"]["api"]["total"] >= 0
    assert jetraft(url, "server", "report", *SYSTEM).splitlines()[-1].startswith(name)
    assert jetraft(url, "server", "healthz", *SYSTEM).splitlines()[-1].split() == [name, "ok"]


def test_a_user_without_the_system_account_is_told(url: str) -> None:
    said = jetraft(url, "server", "ls", "--timeout", "300ms", code=1)
    assert said.startswith("Error: this needs a user of the system account (`jetraft up`")
    assert said.count("\n") == 1


def test_accounts(url: str) -> None:
    jetraft(url, "stream", "add", "USED", "--subjects", "used")
    jetraft(url, "pub", "used", "x")
    shown = jetraft(url, "account", "info")
    assert "streams" in shown
    assert "of unlimited" in shown
    found = as_json(url, "account", "report", *SYSTEM)
    assert found["SYS"]["connections"] >= 1
    assert found["A"]["storage"] > 0
    jetraft(url, "account", "report", *SYSTEM)
    jetraft(url, "stream", "rm", "USED")


def test_checks_have_the_exit_codes_of_monitoring(url: str) -> None:
    assert jetraft(url, "server", "check", "connection").startswith("OK connection: round trip")
    slow = jetraft(
        url, "server", "check", "connection", "--warn", "1ns", "--critical", "1h", code=1
    )
    assert slow.startswith("WARNING")
    dead = "nats://127.0.0.1:1"
    assert jetraft(dead, "server", "check", "connection", code=2).startswith("CRITICAL")
    assert jetraft(dead, "server", "check", "jetstream", code=3).startswith("UNKNOWN")
    assert jetraft(url, "server", "check", "jetstream").startswith("OK")
    jetraft(url, "stream", "add", "CHECK", "--subjects", "check")
    jetraft(url, "pub", "check", "x")
    jetraft(url, "consumer", "add", "CHECK", "c")
    assert jetraft(url, "server", "check", "stream", "CHECK", "--replicas", "1") == (
        "OK stream CHECK: 1 messages, 1 of 1 replicas current\n"
    )
    jetraft(url, "server", "check", "stream", "CHECK", "--min-messages", "2", code=2)
    jetraft(url, "server", "check", "stream", "CHECK", "--replicas", "3", code=2)
    jetraft(url, "server", "check", "stream", "NOTHING", code=2)
    assert jetraft(url, "server", "check", "consumer", "CHECK", "c").startswith("OK consumer")
    jetraft(url, "server", "check", "consumer", "CHECK", "c", "--pending", "0", code=2)
    result = json.loads(jetraft(url, "server", "check", "stream", "CHECK", "--json"))
    assert result["status"] == "OK"
    jetraft(url, "stream", "rm", "CHECK")


# -- migrate ---------------------------------------------------------------------------------


@pytest.fixture
def two(ours: LocalCluster, theirs: LocalCluster) -> Iterator[tuple[str, str]]:
    """A nats-server with a stream of each kind, and a server of ours without streams."""
    old, new = theirs.urls[0], ours.urls[0]
    for url in (old, new):
        for name in as_json(url, "stream", "ls", "--names"):
            jetraft(url, "stream", "rm", name)
    jetraft(old, "stream", "add", "ORDERS", "--subjects", "orders.*", "--metadata", "team=blue")
    for number in range(1, 8):
        jetraft(old, "pub", "orders.us", f"order {number}", "-H", f"N: {number}")
    jetraft(old, "stream", "rm-msg", "ORDERS", "3")
    jetraft(old, "consumer", "add", "ORDERS", "worker")
    jetraft(old, "consumer", "next", "ORDERS", "worker", "--count", "2")
    jetraft(old, "kv", "add", "B")
    jetraft(old, "kv", "put", "B", "k", "value")
    jetraft(old, "stream", "add", "JOBS", "--subjects", "jobs", "--retention", "workqueue")
    jetraft(old, "pub", "jobs", "job 1")
    yield old, new
    for url in (old, new):
        for name in as_json(url, "stream", "ls", "--names"):
            jetraft(url, "stream", "rm", name)


def test_a_rehearsal_copies_and_changes_nothing(two: tuple[str, str]) -> None:
    old, new = two
    done = as_json(old, "migrate", "--to", new)
    assert [(one["stream"], one["messages"], one["consumers"]) for one in done] == [
        ("JOBS", 1, 0), ("KV_B", 1, 0), ("ORDERS", 6, 1),
    ]  # fmt: skip
    jetraft(new, "stream", "verify", "ORDERS", "--against", old)
    assert jetraft(old, "pub", "orders.us", "goes on") == "stored in ORDERS as 8\n"
    said = jetraft(old, "migrate", "--to", new, "--stream", "ORDERS", code=1)
    assert "it is a copy of an earlier run: --replace" in said
    again = as_json(old, "migrate", "--to", new, "--stream", "ORDERS", "--replace")
    assert again[0]["messages"] == 7


def test_the_cut_over(two: tuple[str, str]) -> None:
    old, new = two
    said = jetraft(new, "migrate", old, "--to", new, "--cut-over")
    assert said.splitlines()[-1] == "publishers may use the new servers now"
    jetraft(old, "pub", "orders.us", "refused", "--require-ack", code=1)
    jetraft(new, "stream", "verify", "ORDERS", "--against", old)
    assert jetraft(new, "pub", "orders.us", "there") == "stored in ORDERS as 8\n"
    assert jetraft(new, "consumer", "next", "ORDERS", "worker", "--raw") == "order 4\n"
    assert jetraft(new, "kv", "get", "B", "k") == "value\n"
    config = as_json(new, "stream", "info", "ORDERS")["config"]
    assert config["subjects"] == ["orders.*"]
    assert config["metadata"]["team"] == "blue"
    assert "open again: JOBS, KV_B, ORDERS" in jetraft(old, "migrate", "--undo")
    assert jetraft(old, "pub", "orders.us", "again") == "stored in ORDERS as 8\n"
    assert as_json(old, "stream", "info", "ORDERS")["config"]["metadata"]["team"] == "blue"


def test_a_failed_cut_over_opens_the_stream_again(two: tuple[str, str]) -> None:
    old, new = two
    jetraft(new, "stream", "add", "OTHER", "--subjects", "orders.us")  # the subjects overlap
    said = jetraft(old, "migrate", "--to", new, "--cut-over", "--stream", "ORDERS", code=1)
    assert "not migrated: ORDERS" in said
    assert jetraft(old, "pub", "orders.us", "goes on") == "stored in ORDERS as 8\n"
    assert as_json(new, "stream", "ls", "--names") == ["OTHER"]


def test_a_copy_that_differs_is_deleted_and_its_origin_is_open_again(
    two: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = two

    def one_is_missing(
        client: CommandClient, name: str, *, last: int | None = None
    ) -> tuple[StreamDigest, list[str]]:
        if client.url == new:
            jetraft(new, "stream", "rm-msg", name, "5")
        return checked_stream(client, name, last=last)

    monkeypatch.setattr("broker.cli.operations.migrate.checked_stream", one_is_missing)
    words = ("migrate", "--to", new, "--cut-over", "--stream", "ORDERS")
    assert "the digests differ" in jetraft(old, *words, code=1)
    assert as_json(new, "stream", "ls", "--names") == []
    assert jetraft(old, "pub", "orders.us", "goes on") == "stored in ORDERS as 8\n"


def test_what_cannot_be_migrated_is_said(two: tuple[str, str]) -> None:
    old, new = two
    assert "same server" in jetraft(old, "migrate", "--to", old, code=1)
    assert "no stream NONE" in jetraft(old, "migrate", "--to", new, "--stream", "NONE", code=1)
    jetraft(old, "migrate", code=2)
    jetraft(new, "stream", "add", "JOBS", "--subjects", "jobs")
    said = jetraft(old, "migrate", "--to", new, "--stream", "JOBS", "--replace", code=1)
    assert "it is not a copy" in said
