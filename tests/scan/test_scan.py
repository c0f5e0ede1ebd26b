"""A reader gets every message of its range exactly once, whatever happens to the replicas."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from broker.client import scan, scan_messages
from broker.scan.arrow import DEFAULT_COLUMNS, arrow_schema, batch_of
from broker.scan.client import (
    DataLost,
    Login,
    Planner,
    ScanFailed,
    ScanRange,
    Slice,
    _Retries,
    endpoints_of,
    read_range,
)
from broker.scan.columns import read_columns
from broker.scan.link import LoginRefused, ScanLink, _memory, parse_endpoint
from broker.scan.protocol import (
    FRAME,
    PlanRefused,
    ScanCode,
    ScanProtocolError,
    ScanRefused,
    ScanRequest,
    check_frame,
    decode_request,
    encode_request,
    frame_header,
)
from broker.store.block.codec import BlockDamaged
from tests.support.scan_peers import (
    START_NS,
    STREAM,
    Cluster,
    Store,
    block_of,
    data_of,
    headers_of,
    subject_of,
)

LOGIN = Login(connect_timeout_s=5, read_timeout_s=5)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(Store.filled(3000)) as running:
        yield running


def wanted(cluster: Cluster, first: int, last: int, **more: object) -> ScanRange:
    return ScanRange(
        stream=STREAM,
        id=cluster.plan().id,
        first=first,
        last=last,
        endpoints=endpoints_of(cluster.servers),
        **more,  # type: ignore[arg-type]
    )


def seqs_of(slices: Iterator[Slice]) -> list[int]:
    schema = arrow_schema(["seq"])
    found: list[int] = []
    for piece in slices:
        batch = batch_of(
            piece.columns, low=piece.low, high=piece.high, schema=schema, stream=STREAM
        )
        found += batch.column(0).to_pylist()
    return found


def no_pause(seconds: float) -> None:
    assert seconds > 0


def read(cluster: Cluster, first: int, last: int, **more: object) -> list[int]:
    fail = bool(more.pop("fail_on_data_loss", True))
    asked = wanted(cluster, first, last, **more)
    return seqs_of(read_range(asked, LOGIN, pause=no_pause, fail_on_data_loss=fail))


def test_a_batch_has_the_messages_without_a_copy_of_the_payload() -> None:
    raw = block_of(11, 40)
    columns = read_columns(raw, verify=True)
    schema = arrow_schema([*DEFAULT_COLUMNS, "time_ns", "stream"])
    batch = batch_of(columns, low=12, high=30, schema=schema, stream=STREAM)
    batch.validate(full=True)
    rows = batch.to_pylist()
    assert [row["seq"] for row in rows] == list(range(12, 31))
    for row in rows:
        seq = row["seq"]
        assert row["subject"].encode() == subject_of(seq)
        assert row["data"] == data_of(seq)
        assert row["headers"] == (headers_of(seq) or None)
        assert row["time_ns"] == START_NS + seq * 1500
        assert row["stream"] == STREAM
    assert str(batch.schema.field("time").type) == "timestamp[us, tz=UTC]"
    assert batch.column(2)[0].value == (START_NS + 12 * 1500) // 1000
    import pyarrow as pa

    whole = pa.py_buffer(raw)
    data = batch.column(4).buffers()[2]
    assert whole.address <= data.address < whole.address + whole.size


def test_messages_are_read_without_pyarrow(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chaos runs read replicas back on machines that have what a node needs and nothing else."""
    for absent in ("pyarrow", "numpy"):
        monkeypatch.setitem(sys.modules, absent, None)
    _memory.cache_clear()
    rows = list(scan_messages(STREAM, servers=cluster.servers, first=5, last=2500))
    assert rows == [(seq, data_of(seq)) for seq in range(5, 2501)]
    with pytest.raises(ImportError, match="pip install pyarrow"):
        scan(STREAM, servers=cluster.servers)
    _memory.cache_clear()


@pytest.mark.parametrize("at", [0, 5, 20, 25, 40, 64, 200, 2000])
def test_a_damaged_block_is_detected(at: int) -> None:
    raw = bytearray(block_of(1, 100))
    raw[at] ^= 0xFF
    with pytest.raises(BlockDamaged):
        read_columns(bytes(raw), verify=True)


@pytest.mark.parametrize("size", [0, 10, 63, 64, 200])
def test_a_short_block_is_detected(size: int) -> None:
    with pytest.raises(BlockDamaged):
        read_columns(block_of(1, 100)[:size], verify=False)


def test_wrong_offsets_are_refused_even_without_the_checksum() -> None:
    raw = bytearray(block_of(1, 100))
    ends_at = 64 + 8 * 100
    raw[ends_at + 4 : ends_at + 8] = (2**31 - 1).to_bytes(4, "little")
    with pytest.raises(BlockDamaged):
        read_columns(bytes(raw), verify=False)


def test_a_frame_with_the_wrong_check_is_refused() -> None:
    block = block_of(1, 3)
    _, check = FRAME.unpack(frame_header(block))
    check_frame(check, block)
    with pytest.raises(ScanProtocolError):
        check_frame(check, b"\0" + block[1:])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"stream":"S"}',
        b'{"stream":"","first":1,"last":2}',
        b'{"stream":"S","first":0,"last":2}',
        b'{"stream":"S","first":3,"last":2}',
        b'{"stream":"S","first":1,"last":2,"colour":"red"}',
        b'{"stream":"S","first":1,"last":2,"subjects":"a"}',
        b'\xff{"stream":"S","first":1,"last":2}',
    ],
)
def test_bad_requests_are_answered_with_a_reason(body: bytes) -> None:
    with pytest.raises(ScanRefused) as refused:
        decode_request(body)
    assert refused.value.code is ScanCode.BAD
    assert refused.value.message


def test_a_request_survives_the_wire() -> None:
    request = ScanRequest(stream="S", first=1, last=2, id="x", subjects=("a.>",), max_chunk=5000)
    line = encode_request(request)
    assert decode_request(line.removeprefix(b"SCAN ").removesuffix(b"\r\n")) == request


@pytest.mark.parametrize(("first", "last"), [(1, 3000), (250, 250), (499, 502), (1001, 1500)])
def test_the_range_is_exact(cluster: Cluster, first: int, last: int) -> None:
    assert read(cluster, first, last) == list(range(first, last + 1))


def test_deleted_rows_are_not_sent(cluster: Cluster) -> None:
    store = cluster.leader.store
    store.delete(2, 250, 251, 500, 501, *range(1001, 1501), 2999)
    assert read(cluster, 1, 3000) == store.expected()
    assert len(store.expected()) == 3000 - 506
    with ScanLink(parse_endpoint(cluster.servers.split(",")[0]), LOGIN) as link:
        scan = link.scan(ScanRequest(stream=STREAM, first=1, last=600))
        assert b"250:" not in b"".join(bytes(block) for block in scan.blocks())
        assert scan.end is not None
        assert scan.end.deleted == 5


@pytest.mark.parametrize("patterns", [("orders.eu.>",), ("orders.*.3", "orders.us.4"), ("none",)])
def test_rows_of_other_subjects_are_not_sent(cluster: Cluster, patterns: tuple[str, ...]) -> None:
    from broker.subjects.grammar import matches

    expected = [
        seq
        for seq in range(1, 3001)
        if any(matches(subject_of(seq), pattern.encode()) for pattern in patterns)
    ]
    assert read(cluster, 1, 3000, subjects=patterns) == expected


def test_a_replica_that_dies_in_the_middle_is_replaced(cluster: Cluster) -> None:
    first, second, third = cluster.peers
    first.faults.die_after_bytes = 150_000
    second.faults.die_after_bytes = 20_000
    assert read(cluster, 1, 3000) == list(range(1, 3001))
    asked = [json.loads(peer.requests[0])["first"] for peer in (first, second, third)]
    assert asked == sorted(asked)
    assert asked[0] == 1
    assert asked[1] > 1  # it continued where the first had stopped


def test_a_reader_remembers_which_replica_it_has_moved_to() -> None:
    pauses: list[float] = []
    retries = _Retries(3, 60.0)
    assert retries.wait(pauses.append, busy=False)
    assert retries.endpoint == 1
    retries.progress()
    assert retries.wait(pauses.append, busy=False)
    assert (retries.endpoint, pauses) == (2, [])
    assert retries.wait(pauses.append, busy=False)
    assert (retries.endpoint, pauses) == (0, [])
    assert retries.wait(pauses.append, busy=False)
    assert (retries.endpoint, pauses) == (1, [0.1])  # a round begins where it went well last


def test_a_bit_flipped_in_transit_causes_a_retry_and_loses_no_row(cluster: Cluster) -> None:
    for at in (100, 30_000):
        cluster.peers[0].faults.flip_byte_at = at
        assert read(cluster, 1, 3000) == list(range(1, 3001))
        assert cluster.peers[0].faults.flip_byte_at is None


def test_replicas_that_lag_or_are_busy_are_skipped(cluster: Cluster) -> None:
    behind, busy, last = cluster.peers
    behind.store = Store.filled(1000)
    busy.faults.busy = True
    assert read(cluster, 1, 3000) == list(range(1, 3001))
    assert (len(behind.requests), len(busy.requests), len(last.requests)) == (1, 1, 1)


def test_when_no_replica_serves_the_error_names_the_reason_of_each(cluster: Cluster) -> None:
    cluster.stop_peer(cluster.peers[0])
    cluster.peers[1].faults.busy = True
    cluster.peers[2].store = Store.filled(1000)
    with pytest.raises(ScanFailed) as failed:
        read(cluster, 900, 3000)
    text = str(failed.value)
    assert "BUSY" in text
    assert "BEHIND" in text
    assert str(cluster.peers[0].port) in text


def test_lost_messages_are_reported_or_skipped(cluster: Cluster) -> None:
    cluster.leader.store.expire(700)
    with pytest.raises(DataLost) as lost:
        read(cluster, 400, 1000)
    assert (lost.value.first, lost.value.last) == (400, 700)
    assert read(cluster, 400, 1000, fail_on_data_loss=False) == list(range(701, 1001))
    assert read(cluster, 100, 200, fail_on_data_loss=False) == []


def test_messages_removed_during_a_scan_are_reported(cluster: Cluster) -> None:
    store = cluster.leader.store
    cluster.peers[0].faults.pause_after_bytes = 10_000
    slices = read_range(wanted(cluster, 1, 3000), LOGIN, pause=no_pause)
    first = next(slices)
    assert cluster.paused.wait(10)
    store.expire(1700)
    cluster.resume.set()
    with pytest.raises(DataLost) as lost:
        seqs_of(slices)
    assert lost.value.first > first.high
    assert lost.value.last == 1700


def test_a_recreated_stream_is_not_mistaken_for_the_old_one(cluster: Cluster) -> None:
    asked = wanted(cluster, 1, 100)
    for peer in cluster.peers:
        peer.stream_id = "incarnation-2"
    with pytest.raises(ScanFailed, match="created again"):
        seqs_of(read_range(asked, LOGIN, pause=no_pause))


def test_a_reader_waits_for_busy_replicas_as_long_as_it_likes(cluster: Cluster) -> None:
    for peer in cluster.peers:
        peer.faults.busy = True
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 40:  # far more than the attempts at servers that fail
            cluster.peers[1].faults.busy = False

    asked = wanted(cluster, 1, 3000)
    assert seqs_of(read_range(asked, LOGIN, pause=pause)) == list(range(1, 3001))
    cluster.peers[1].faults.busy = True
    waits.clear()
    with pytest.raises(ScanFailed, match="BUSY"):
        seqs_of(read_range(asked, LOGIN, pause=pause, busy_timeout_s=5))
    assert 5 <= sum(waits) < 8


def test_a_request_no_replica_can_serve_fails_at_once(cluster: Cluster) -> None:
    with pytest.raises(ScanRefused, match="not a valid subject"):
        read(cluster, 1, 10, subjects=("a..b",))
    assert sum(len(peer.requests) for peer in cluster.peers) == 1


def test_a_plan_comes_from_any_server_that_is_alive(cluster: Cluster) -> None:
    planner = Planner(endpoints_of(cluster.servers), LOGIN, pause=no_pause)
    assert planner.plan(STREAM).last_seq == 3000
    cluster.stop_peer(cluster.peers[0])
    cluster.leader.store.grow(5)
    assert planner.plan(STREAM).last_seq == 3005
    with pytest.raises(PlanRefused, match="stream not found"):
        planner.plan("NONE")
    planner.close()


def test_a_wrong_password_is_not_retried() -> None:
    with Cluster(Store.filled(10), password="right") as cluster:
        asked = wanted(cluster, 1, 10)
        with pytest.raises(LoginRefused):
            seqs_of(read_range(asked, Login(user="u", password="wrong"), pause=no_pause))
        good = Login(user="u", password="right")
        assert seqs_of(read_range(asked, good, pause=no_pause)) == list(range(1, 11))


def test_a_reader_needs_no_compiled_codecs() -> None:
    """Spark executors get the Python sources alone."""
    found = subprocess.run(
        [sys.executable, "-c", "import sys, broker.spark.source; print(*sys.modules)"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = found.stdout.split()
    assert "broker.store.block.block_format" in loaded
    assert not [name for name in loaded if name.startswith("broker.") and "._" in name]
