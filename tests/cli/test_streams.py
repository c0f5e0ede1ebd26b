"""`jetraft stream` against our server and against nats-server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.local import LocalCluster
from tests.support.jetraft_command import as_json, as_json_lines, jetraft


@pytest.fixture
def stream(url: str) -> str:
    """A stream S with five messages on two subjects."""
    jetraft(url, "stream", "add", "S", "--subjects", "s.*", "--max-age", "1h30m")
    for number in range(1, 6):
        subject = "s.odd" if number % 2 else "s.even"
        jetraft(url, "pub", subject, f"m{number}", "-H", f"Number: {number}")
    return "S"


@pytest.fixture(autouse=True)
def nothing_left(url: str) -> None:
    for name in as_json(url, "stream", "ls", "--names"):
        jetraft(url, "stream", "rm", name)


def test_from_creation_to_deletion(url: str) -> None:
    assert "no streams" in jetraft(url, "stream", "ls")
    said = jetraft(
        url, "stream", "add", "A", "--subjects", "a.*, b", "--max-bytes", "10MiB", "--max-age",
        "1h30m", "--max-msgs", "7", "--dupe-window", "30s", "--metadata", "team=blue",
        "--discard", "new", "--no-allow-direct",
    )  # fmt: skip
    assert "limits     7 messages, 10.0 MiB, 1h30m, publishes beyond that are refused" in said
    config = as_json(url, "stream", "info", "A")["config"]
    assert config["subjects"] == ["a.*", "b"]
    assert config["max_age"] == 5400 * 10**9
    assert config["max_bytes"] == 10 << 20
    assert config["duplicate_window"] == 30 * 10**9
    assert config["metadata"]["team"] == "blue"
    assert not config.get("allow_direct")
    jetraft(url, "stream", "add", "A", "--subjects", "other", code=1)
    assert jetraft(url, "stream", "rm", "A") == "deleted A\n"
    assert "stream not found (10059)" in jetraft(url, "stream", "info", "A", code=1)


def test_a_configuration_from_a_file(url: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps({"name": "F", "subjects": ["f"], "max_msgs": 3}))
    jetraft(url, "stream", "add", "--config", str(tmp_path / "s.json"), "--max-msgs", "4")
    assert as_json(url, "stream", "info", "F")["config"]["max_msgs"] == 4
    (tmp_path / "s.json").write_text("[")
    said = jetraft(url, "stream", "add", "X", "--config", str(tmp_path / "s.json"), code=1)
    assert "s.json" in said


def test_edit_shows_what_changes(url: str, stream: str) -> None:
    said = jetraft(url, "stream", "edit", stream, "--max-msgs", "9", "--dry-run")
    assert said.splitlines()[-1].split() == ["max_msgs", "-1", "9"]
    assert as_json(url, "stream", "info", stream)["config"]["max_msgs"] == -1
    jetraft(url, "stream", "edit", stream, "--max-msgs", "9")
    assert as_json(url, "stream", "info", stream)["config"]["max_msgs"] == 9
    assert "nothing changes" in jetraft(url, "stream", "edit", stream, "--max-msgs", "9")
    jetraft(url, "stream", "edit", stream, "--storage", "memory", code=1)


def test_a_copy_has_the_configuration_and_no_messages(url: str, stream: str) -> None:
    jetraft(url, "stream", "copy", stream, "C", "--subjects", "c.*")
    found = as_json(url, "stream", "info", "C")
    assert found["config"]["max_age"] == 5400 * 10**9
    assert found["state"]["messages"] == 0
    jetraft(url, "stream", "copy", stream, "D", code=2)  # it needs subjects


def test_lists_and_reports(url: str, stream: str) -> None:
    jetraft(url, "stream", "add", "EMPTY", "--subjects", "e")
    rows = [line.split() for line in jetraft(url, "stream", "ls").splitlines()]
    assert [row[0] for row in rows[2:]] == ["EMPTY", "S"]
    assert jetraft(url, "stream", "ls", "--subject", "s.odd", "--names") == "S\n"
    report = jetraft(url, "stream", "report").splitlines()
    assert report[2].startswith("S ")  # the largest first
    assert [one["config"]["name"] for one in as_json(url, "stream", "find", "--empty")] == ["EMPTY"]
    assert [one["config"]["name"] for one in as_json(url, "stream", "find", "--messages", "5")] == [
        "S"
    ]
    assert "no stream fits" in jetraft(url, "stream", "find", "--idle", "1h", "--subject", "s.odd")
    assert "EMPTY" in jetraft(url, "stream", "find", "--messages", "5", "--invert")
    counts = jetraft(url, "stream", "info", stream, "--subjects", "s.*").splitlines()[-2:]
    assert [line.split() for line in counts] == [["s.even", "2"], ["s.odd", "3"]]


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_view_shows_messages_and_changes_nothing(url: str, retention: str) -> None:
    jetraft(url, "stream", "add", "V", "--subjects", "v.*", "--retention", retention)
    for number in range(1, 6):
        jetraft(url, "pub", f"v.{number % 2}", f"m{number}")
    assert jetraft(url, "stream", "view", "V", "--seq", "4") == "[4] v.0: m4\n[5] v.1: m5\n"
    assert jetraft(url, "stream", "view", "V", "--subject", "v.0", "--raw") == "m2\nm4\n"
    assert jetraft(url, "stream", "view", "V", "--count", "1") == "[1] v.1: m1\n"
    assert len(as_json_lines(url, "stream", "view", "V", "--since", "1h")) == 5
    assert jetraft(url, "stream", "view", "V", "--seq", "6") == ""
    state = as_json(url, "stream", "info", "V")["state"]
    assert (state["messages"], state["consumer_count"]) == (5, 0)


def test_single_messages(url: str, stream: str) -> None:
    assert jetraft(url, "stream", "get", stream, "2") == "[2] s.even: m2\n    Number: 2\n"
    assert jetraft(url, "stream", "get", stream, "--last", "s.odd", "--raw") == "m5"
    found = as_json(url, "stream", "get", stream, "4")
    assert (found["seq"], found["data"], found["headers"]) == (4, "m4", {"Number": ["4"]})
    jetraft(url, "stream", "rm-msg", stream, "2")
    assert "no message found (10037)" in jetraft(url, "stream", "get", stream, "2", code=1)
    jetraft(url, "stream", "rm-msg", stream, "2", code=1)


def test_purge(url: str, stream: str) -> None:
    assert jetraft(url, "stream", "purge", stream, "--subject", "s.even") == (
        "purged S: 2 messages\n"
    )
    assert jetraft(url, "stream", "purge", stream, "--keep", "1") == "purged S: 2 messages\n"
    assert as_json(url, "stream", "purge", stream)["purged"] == 1


def test_a_sealed_stream_takes_nothing(url: str, stream: str) -> None:
    jetraft(url, "stream", "seal", stream)
    assert "sealed" in jetraft(url, "stream", "info", stream)
    assert "sealed" in jetraft(url, "stream", "seal", stream, code=1)
    jetraft(url, "pub", "s.odd", "more", "--require-ack", code=1)


def test_a_binary_payload_cannot_harm_the_terminal(url: str) -> None:
    jetraft(url, "stream", "add", "B", "--subjects", "b")
    jetraft(url, "pub", "b", given=b"\x1b[2J\xff\x00")
    assert jetraft(url, "stream", "get", "B", "1") == "[1] b: \\x1b[2J\ufffd\\x00\n"
    assert as_json(url, "stream", "get", "B", "1")["data_base64"] == "G1sySv8A"


def test_backup_and_restore(url: str, stream: str, tmp_path: Path) -> None:
    jetraft(url, "consumer", "add", stream, "worker")
    jetraft(url, "consumer", "next", stream, "worker", "--count", "2")
    digest = as_json(url, "stream", "verify", stream)["sha256"]
    folder = str(tmp_path / "backup")
    assert "saved S" in jetraft(url, "stream", "backup", stream, folder)
    assert "exists already" in jetraft(url, "stream", "backup", stream, folder, code=1)
    assert "there is a stream S already" in jetraft(url, "stream", "restore", folder, code=1)
    jetraft(url, "stream", "rm", stream)
    jetraft(url, "stream", "restore", folder)
    assert as_json(url, "stream", "verify", stream)["sha256"] == digest
    assert jetraft(url, "consumer", "next", stream, "worker", "--raw") == "m3\n"
    archive = tmp_path / "backup" / "stream.tar.s2"
    archive.write_bytes(archive.read_bytes()[:-1] + b"?")
    assert "is damaged" in jetraft(url, "stream", "restore", folder, code=1)
    jetraft(url, "stream", "backup", "NOTHING", str(tmp_path / "none"), code=1)
    assert [path.name for path in tmp_path.iterdir() if path.name != "config"] == ["backup"]


def test_streams_of_two_servers_are_compared(ours: LocalCluster, theirs: LocalCluster) -> None:
    here, there = ours.urls[0], theirs.urls[0]
    for url in (here, there):
        if "V2" in as_json(url, "stream", "ls", "--names"):
            jetraft(url, "stream", "rm", "V2")
        jetraft(url, "stream", "add", "V2", "--subjects", "v2")
    assert "faults" in jetraft(here, "stream", "verify", "V2", "--against", there, "--json")
    jetraft(there, "pub", "v2", "only there")
    said = jetraft(here, "stream", "verify", "V2", "--against", there, code=1)
    assert "they differ: here 0 messages" in said


def test_one_replica_has_nobody_to_step_down_to(url: str, stream: str) -> None:
    said = jetraft(url, "stream", "cluster", "step-down", stream, code=1)
    assert "nobody else can lead it" in said
    jetraft(url, "stream", "cluster", "peer-remove", stream, "nobody", code=1)


@pytest.mark.parametrize("name", ["a.b", "*", "a b", "x/y"])
def test_a_name_is_one_word(url: str, name: str) -> None:
    said = jetraft(url, "stream", "info", name, code=1)
    assert "cannot be the name of a stream" in said
