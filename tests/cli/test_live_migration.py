"""`jetraft migrate --remote`: streams of a nats-server, and of ours, are copied while they are
written."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from broker.cli.connect.blocking import connected
from broker.cli.connect.failures import CommandFailed
from broker.cli.connect.options import Destination
from broker.cli.operations.live_copy import LiveCopy
from broker.cli.streams.reading import StreamMessage
from broker.local import LocalCluster
from tests.cli.conftest import ACCOUNTS
from tests.support.jetraft_command import as_json, jetraft


@pytest.fixture(scope="module")
def origins(
    tmp_path_factory: pytest.TempPathFactory, theirs: LocalCluster
) -> Iterator[dict[str, str]]:
    """By the name under which the new server knows them: a nats-server and a server of ours."""
    place = tmp_path_factory.mktemp("older")
    with LocalCluster(place, size=1, name="older", more=ACCOUNTS) as older:
        yield {"old": theirs.urls[0], "older": older.urls[0]}


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory, origins: dict[str, str]) -> Iterator[str]:
    place = tmp_path_factory.mktemp("newer")
    remotes = ", ".join(f'{name} {{ urls: ["{url}"] }}' for name, url in origins.items())
    jetstream = f"remotes {{ {remotes} }}"
    with LocalCluster(place, size=1, name="newer", jetstream=jetstream, more=ACCOUNTS) as cluster:
        yield cluster.urls[0]


@pytest.fixture
def two(
    origins: dict[str, str], newer: str, request: pytest.FixtureRequest
) -> Iterator[tuple[str, str]]:
    """A server with a stream that has gaps, a nats-server if not said otherwise, and one without
    streams."""
    old, new = origins[getattr(request, "param", "old")], newer
    _clear(old, new)
    jetraft(old, "stream", "add", "ORDERS", "--subjects", "orders.*", "--metadata", "team=blue")
    jetraft(old, "pub", "orders.us", "order {{Count}}", "--count", "20", "-H", "Kind: new")
    jetraft(old, "stream", "rm-msg", "ORDERS", "3")
    yield old, new
    _clear(old, new)


def _clear(*urls: str) -> None:
    for url in urls:
        for name in as_json(url, "stream", "ls", "--names"):
            jetraft(url, "stream", "rm", name)


@contextmanager
def publishing(url: str) -> Iterator[list[int]]:
    """One message after the other, until the stream is fenced; gives the sequences that were
    acknowledged."""
    acked: list[int] = []
    begun, stop = threading.Event(), threading.Event()

    def work() -> None:
        with connected(Destination(servers=(url,))) as client:
            while not stop.is_set():
                answer = client.request("orders.eu", b"meanwhile %d" % len(acked), timeout_s=5)
                if answer.status == 503:
                    return  # no responders: the fence
                acked.append(json.loads(answer.data)["seq"])
                if len(acked) > 50:
                    begun.set()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait(30)
    try:
        yield acked
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(("two", "remote"), [("old", "old"), ("older", "older")], indirect=["two"])
def test_publishers_go_on_while_a_stream_is_copied(two: tuple[str, str], remote: str) -> None:
    old, new = two
    words = ("migrate", "--to", new, "--remote", remote)
    with publishing(old) as acked:
        done = as_json(old, *words)[0]
        assert (done["result"], done["ok"]) == ("follows", True)
        assert done["messages"] > 70
        assert as_json(new, "stream", "info", "ORDERS")["config"]["mirror"]["name"] == "ORDERS"
        at_first = len(acked)
        done = as_json(old, *words, "--cut-over", "--yes")[0]
    assert done["result"] == "moved"
    assert done["last_seq"] == acked[-1]
    assert len(acked) > at_first, "nothing was published between the two commands"
    jetraft(new, "stream", "verify", "ORDERS", "--against", old)
    jetraft(old, "pub", "orders.us", "refused", "--require-ack", code=1)
    assert jetraft(new, "pub", "orders.us", "there") == f"stored in ORDERS as {acked[-1] + 1}\n"
    here, there = (as_json(url, "stream", "info", "ORDERS")["config"] for url in two)
    fixed = ("subjects", "metadata")
    assert {key: here[key] for key in here if key not in fixed} == {
        key: there[key] for key in here if key not in fixed
    }
    assert there["subjects"] == ["orders.*"]
    assert there["metadata"]["team"] == "blue"
    assert "open again: ORDERS" in jetraft(old, "migrate", "--undo")


def test_consumers_continue_after_their_ack_floor(two: tuple[str, str]) -> None:
    old, new = two
    jetraft(old, "consumer", "add", "ORDERS", "worker", "--max-deliver", "7")
    jetraft(old, "consumer", "next", "ORDERS", "worker", "--count", "4")
    jetraft(old, "consumer", "add", "ORDERS", "idle")
    done = as_json(old, "migrate", "--to", new, "--remote", "old", "--cut-over", "--yes")[0]
    assert done["consumers"] == 2
    assert jetraft(new, "consumer", "next", "ORDERS", "worker", "--raw") == "order 6\n"
    assert jetraft(new, "consumer", "next", "ORDERS", "idle", "--raw") == "order 1\n"
    here, there = (as_json(url, "consumer", "info", "ORDERS", "worker")["config"] for url in two)
    assert {key: there.get(key) for key in here if key != "metadata"} == {
        key: here[key] for key in here if key != "metadata"
    }


def test_what_was_deleted_meanwhile_is_deleted_in_the_copy(two: tuple[str, str]) -> None:
    old, new = two
    jetraft(old, "kv", "add", "B", "--history", "3")
    for value in ("one", "two"):
        jetraft(old, "kv", "put", "B", "k", value)
    jetraft(old, "kv", "put", "B", "k", "three", "--revision", "2")  # mirrors drop this header
    jetraft(old, "migrate", "--to", new, "--remote", "old")
    jetraft(old, "stream", "rm-msg", "ORDERS", "9")
    jetraft(old, "stream", "purge", "ORDERS", "--seq", "6")
    done = as_json(old, "migrate", "--to", new, "--remote", "old", "--cut-over", "--yes")
    assert [(one["stream"], one["messages"]) for one in done] == [("KV_B", 3), ("ORDERS", 14)]
    jetraft(new, "stream", "verify", "ORDERS", "--against", old)
    assert jetraft(new, "kv", "get", "B", "k") == "three\n"


def test_what_a_mirror_cannot_copy_is_copied_as_an_archive(two: tuple[str, str]) -> None:
    old, new = two
    jetraft(old, "stream", "add", "JOBS", "--subjects", "jobs", "--retention", "workqueue")
    jetraft(old, "pub", "jobs", "job 1")
    jetraft(old, "stream", "rm-msg", "ORDERS", "20")  # the copy would end before its origin
    done = as_json(old, "migrate", "--to", new, "--remote", "old", "--cut-over", "--yes")
    results = {one["stream"]: (one["result"], one["messages"]) for one in done}
    assert results["JOBS"] == ("moved, not live: its retention is workqueue", 1)
    assert results["ORDERS"][0].startswith("moved, not live: its last messages were deleted")
    assert jetraft(new, "pub", "orders.us", "there") == "stored in ORDERS as 21\n"


def test_a_message_that_differs_ends_the_cut_over(
    two: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = two
    as_read = LiveCopy._stored

    def damaged(copy: LiveCopy, client: object, first: int, last: int) -> Iterator[StreamMessage]:
        for message in as_read(copy, client, first, last):  # type: ignore[arg-type]
            if client is copy._target and message.seq == 15:
                message.data += b"?"
            yield message

    monkeypatch.setattr(LiveCopy, "_stored", damaged)
    words = ("migrate", "--to", new, "--remote", "old", "--cut-over", "--yes")
    assert "message 15 differs from its copy" in jetraft(old, *words, code=1)
    assert jetraft(old, "pub", "orders.us", "goes on") == "stored in ORDERS as 21\n"


def test_a_failure_in_the_cut_over_opens_the_stream_again(
    two: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = two

    def refused(_copy: LiveCopy, _last: int) -> int:
        assert "stored" not in jetraft(old, "pub", "orders.us", "no", "--require-ack", code=1)
        raise CommandFailed("no")

    with monkeypatch.context() as patch:
        patch.setattr(LiveCopy, "_take_over_consumers", refused)
        words = ("migrate", "--to", new, "--remote", "old", "--cut-over", "--yes")
        assert "not migrated: ORDERS" in jetraft(old, *words, code=1)
    assert jetraft(old, "pub", "orders.us", "goes on") == "stored in ORDERS as 21\n"
    assert as_json(old, *words)[0]["messages"] == 20  # it continues with the same copy


def test_an_unknown_remote_and_taken_subjects_are_said(two: tuple[str, str]) -> None:
    old, new = two
    said = jetraft(old, "migrate", "--to", new, "--remote", "elsewhere", code=1)
    assert 'no remote "elsewhere" is configured' in said
    jetraft(new, "stream", "rm", "ORDERS")
    jetraft(new, "stream", "add", "OTHER", "--subjects", "orders.us")
    said = jetraft(old, "migrate", "--to", new, "--remote", "old", "--cut-over", "--yes", code=1)
    assert "orders.* is a subject of OTHER" in said
    assert as_json(new, "stream", "ls", "--names") == ["OTHER"]
