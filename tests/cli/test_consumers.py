"""`jetraft consumer` against our server and against nats-server."""

from __future__ import annotations

import pytest

from tests.support.jetraft_command import as_json, as_json_lines, jetraft, started


@pytest.fixture(scope="module")
def stream(url: str) -> str:
    """A stream C with the messages m1 to m6 on two subjects."""
    jetraft(url, "stream", "add", "C", "--subjects", "c.*")
    for number in range(1, 7):
        jetraft(url, "pub", "c.odd" if number % 2 else "c.even", f"m{number}")
    return "C"


@pytest.fixture(autouse=True)
def no_consumers(url: str, stream: str) -> None:
    for name in as_json(url, "consumer", "ls", stream, "--names"):
        jetraft(url, "consumer", "rm", stream, name)


def test_from_creation_to_deletion(url: str, stream: str) -> None:
    assert "C has no consumers" in jetraft(url, "consumers", "ls", stream)
    jetraft(
        url, "consumer", "add", stream, "worker", "--filter", "c.odd", "--ack-wait", "1m30s",
        "--max-deliver", "4", "--backoff", "1s,5s", "--max-pending", "10", "--description", "text",
    )  # fmt: skip
    config = as_json(url, "consumer", "info", stream, "worker")["config"]
    assert config["filter_subject"] == "c.odd"
    assert config["backoff"] == [10**9, 5 * 10**9]
    assert config["max_ack_pending"] == 10
    shown = jetraft(url, "consumer", "info", stream, "worker")
    assert "redelivers   after 1s, 5s, 4 deliveries at most" in shown
    assert jetraft(url, "consumer", "ls", stream).splitlines()[-1].split()[:3] == [
        "worker", "pull", "c.odd",
    ]  # fmt: skip
    assert jetraft(url, "consumer", "rm", stream, "worker") == "deleted C > worker\n"
    assert "consumer not found (10014)" in jetraft(url, "consumer", "rm", stream, "worker", code=1)


def test_messages_are_acked_unless_told_otherwise(url: str, stream: str) -> None:
    jetraft(url, "consumer", "add", stream, "w")
    assert jetraft(url, "consumer", "next", stream, "w", "--count", "2", "--raw") == "m1\nm2\n"
    jetraft(url, "consumer", "next", stream, "w", "--no-ack")
    info = as_json(url, "consumer", "info", stream, "w")
    assert info["ack_floor"]["stream_seq"] == 2
    assert info["num_ack_pending"] == 1
    jetraft(url, "consumer", "next", stream, "w", "--answer", "nak")
    again = as_json_lines(url, "consumer", "next", stream, "w")
    assert (again[0]["seq"], again[0]["deliveries"]) == (4, 2)
    jetraft(url, "consumer", "next", stream, "w", "--answer", "term")
    report = jetraft(url, "consumer", "report", stream).splitlines()[-1].split()
    assert report[:3] == ["w", "2", "1"]


def test_no_message_is_exit_code_4(url: str, stream: str) -> None:
    jetraft(url, "consumer", "add", stream, "w", "--deliver", "new")
    said = jetraft(url, "consumer", "next", stream, "w", "--timeout", "100ms", code=4)
    assert "no message within 0.1 s" in said


@pytest.mark.parametrize(
    ("deliver", "first"),
    [("all", "m1"), ("last", "m6"), ("last_per_subject", "m5"), ("4", "m4"), ("1h", "m1"),
     ("2020-01-01T00:00:00Z", "m1")],
)  # fmt: skip
def test_where_a_consumer_starts(url: str, stream: str, deliver: str, first: str) -> None:
    jetraft(url, "consumer", "add", stream, "w", "--deliver", deliver)
    assert jetraft(url, "consumer", "next", stream, "w", "--raw") == f"{first}\n"


def test_edit_and_copy(url: str, stream: str) -> None:
    jetraft(url, "consumer", "add", stream, "w", "--filter", "c.odd", "--filter", "c.even")
    said = jetraft(url, "consumer", "edit", stream, "w", "--max-deliver", "3")
    assert said.splitlines()[-1].split() == ["max_deliver", "-1", "3"]
    jetraft(url, "consumer", "copy", stream, "w", "w2", "--filter", "c.odd")
    config = as_json(url, "consumer", "info", stream, "w2")["config"]
    assert (config["max_deliver"], config["filter_subject"]) == (3, "c.odd")
    jetraft(url, "consumer", "add", stream, "w2", "--max-deliver", "9", code=1)  # it exists


def test_pause_and_resume(url: str, stream: str) -> None:
    jetraft(url, "consumer", "add", stream, "w")
    assert "is paused for 59m" in jetraft(url, "consumer", "pause", stream, "w", "1h")
    assert "paused" in jetraft(url, "consumer", "info", stream, "w")
    jetraft(url, "consumer", "next", stream, "w", "--timeout", "100ms", code=4)
    assert "goes on" in jetraft(url, "consumer", "resume", stream, "w")
    jetraft(url, "consumer", "next", stream, "w")
    past = jetraft(url, "consumer", "pause", stream, "w", "2020-01-01T00:00:00Z", code=1)
    assert "in the past" in past


def test_sub_of_a_pull_consumer(url: str, stream: str) -> None:
    jetraft(url, "consumer", "add", stream, "w")
    found = as_json_lines(url, "consumer", "sub", stream, "w", "--count", "4")
    assert [one["data"] for one in found] == ["m1", "m2", "m3", "m4"]
    assert as_json(url, "consumer", "info", stream, "w")["ack_floor"]["stream_seq"] == 4


def test_sub_of_a_push_consumer(url: str, stream: str) -> None:
    jetraft(url, "consumer", "add", stream, "p", "--target", "to.me", "--ack", "none")
    assert "use `consumer sub`" in jetraft(url, "consumer", "next", stream, "p", code=1)
    said = jetraft(url, "consumer", "sub", stream, "p", "--wait", "200ms", "--raw")
    assert said.splitlines()[1:] == ["m1", "m2", "m3", "m4", "m5", "m6"]


def test_sub_waits_for_new_messages(url: str, stream: str) -> None:
    jetraft(url, "consumer", "add", stream, "w", "--deliver", "new", "--filter", "c.new")
    with started(url, "consumer", "sub", stream, "w", "--count", "1") as child:
        assert child.stderr is not None
        assert "waiting for messages" in child.stderr.readline()
        jetraft(url, "pub", "c.new", "now")
        shown, _ = child.communicate(timeout=60)
    assert shown.endswith("c.new: now\n")
    jetraft(url, "stream", "purge", stream, "--subject", "c.new")
