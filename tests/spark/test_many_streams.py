"""Streaming queries over several streams, with limits on what one batch takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from broker.scan.protocol import decode_plan_request
from broker.spark.option_values import OptionError
from broker.spark.source import JetRaftDataSource
from broker.spark.stream_source import (
    IDLE_WAIT_S,
    NAMES_EVERY_S,
    JetRaftStreamReader,
    StreamReplacedError,
)
from tests.support.scan_peers import STREAM, Cluster, Store


class Clock:
    """Time passes only where the reader waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(Store.filled(1000)) as running:
        running.stores["OTHER"] = Store.filled(3000)
        yield running


def reader(cluster: Cluster, clock: Clock, **options: str) -> JetRaftStreamReader:
    source = JetRaftDataSource(CaseInsensitiveDict({"servers": cluster.servers, **options}))
    made = source.streamReader(source.schema())
    made._clock, made._pause = clock, clock.pause
    return made


def pinned(made: JetRaftStreamReader) -> dict[str, Any]:
    start = made.initialOffset()
    assert made.latestOffset(start, made.getDefaultReadLimit()) == start
    return start


def next_of(offset: dict[str, Any]) -> dict[str, int]:
    return {name: position["next"] for name, position in offset["streams"].items()}


def test_several_streams_share_a_batch_by_their_backlog(cluster: Cluster) -> None:
    made = reader(
        cluster,
        Clock(),
        stream=f"{STREAM},OTHER",
        startingOffsets='{"ORDERS": "earliest", "OTHER": 1}',
        maxRecordsPerTrigger="400",
        readerName="orders to parquet",
    )
    start = pinned(made)
    assert next_of(start) == {STREAM: 1, "OTHER": 1}
    end = made.latestOffset(start, made.getDefaultReadLimit())
    assert next_of(end) == {STREAM: 101, "OTHER": 301}
    pieces = [(p.wanted.stream, p.wanted.first, p.wanted.last) for p in made.partitions(start, end)]
    assert pieces == [(STREAM, 1, 100), ("OTHER", 1, 300)]
    told = [json.loads(body) for peer in cluster.peers for body in peer.asked if body]
    assert {"reader": "orders to parquet", "next": 1} in told
    assert next_of(made.reportLatestOffset() or {}) == {STREAM: 1001, "OTHER": 3001}
    assert next_of(made.latestOffset(end, ReadAllAvailable())) == {STREAM: 1001, "OTHER": 3001}
    made.stop()


def test_a_batch_is_limited_by_bytes_and_replays_are_cut_in_the_same_places(
    cluster: Cluster,
) -> None:
    store = cluster.leader.store
    made = reader(
        cluster,
        Clock(),
        stream=STREAM,
        startingOffsets="earliest",
        maxBytesPerTrigger=str(store.bytes // 2),
        maxBytesPerPartition=str(store.bytes // 8),
    )
    start = pinned(made)
    assert isinstance(made.getDefaultReadLimit(), ReadMaxBytes)
    end = made.latestOffset(start, made.getDefaultReadLimit())
    assert 400 < end["next"] < 600
    pieces = [p.wanted.first for p in made.partitions(start, end)]
    assert len(pieces) in (4, 5)
    store.grow(500, block_rows=30)  # other blocks, other sizes
    again = reader(cluster, Clock(), stream=STREAM, maxBytesPerPartition="100")
    assert [p.wanted.first for p in again.partitions(start, end)] == pieces
    made.stop()
    again.stop()


def test_a_batch_waits_for_enough_messages_but_not_for_ever(cluster: Cluster) -> None:
    clock = Clock()
    made = reader(cluster, clock, stream=STREAM, minRecordsPerTrigger="100", maxTriggerDelay="10s")
    start = pinned(made)
    cluster.leader.store.grow(50)
    assert made.latestOffset(start, ReadAllAvailable()) == start
    clock.now += 10
    assert made.latestOffset(start, ReadAllAvailable())["next"] == 1051
    cluster.leader.store.grow(100)
    middle = {**start, "next": 1051}
    assert made.latestOffset(middle, ReadAllAvailable())["next"] == 1151
    made.stop()


def test_an_idle_query_waits_in_the_source(cluster: Cluster) -> None:
    clock = Clock()
    made = reader(cluster, clock, stream=STREAM)
    start = pinned(made)
    before = clock.now
    assert made.latestOffset(start, ReadAllAvailable()) is start
    assert IDLE_WAIT_S <= clock.now - before < 2 * IDLE_WAIT_S
    asked = [decode_plan_request(body) for peer in cluster.peers for body in peer.asked]
    assert max(one.wait_ms for one in asked) == 1000 * IDLE_WAIT_S  # the leader waits as well
    cluster.leader.store.grow(1)
    before = clock.now
    assert made.latestOffset(start, ReadAllAvailable())["next"] == 1002
    assert clock.now == before
    made.stop()


def test_a_pattern_finds_new_streams_and_misses_deleted_ones(cluster: Cluster) -> None:
    clock = Clock()
    made = reader(cluster, clock, streamPattern="O*", startingOffsets="latest")
    start = pinned(made)
    assert next_of(start) == {STREAM: 1001, "OTHER": 3001}
    cluster.stores["ONE-MORE"] = Store.filled(10)
    cluster.stores["NOT-THIS"] = Store.filled(10)
    clock.now += NAMES_EVERY_S
    middle = made.latestOffset(start, ReadAllAvailable())
    assert next_of(middle) == {"ONE-MORE": 1, STREAM: 1001, "OTHER": 3001}
    assert made.partitions(start, middle) == []
    end = made.latestOffset(middle, ReadAllAvailable())
    assert [(p.wanted.first, p.wanted.last) for p in made.partitions(middle, end)] == [(1, 10)]
    del cluster.stores["OTHER"]
    with pytest.raises(StreamReplacedError, match="OTHER was deleted"):
        made.latestOffset(end, ReadAllAvailable())
    made.stop()
    lenient = reader(cluster, Clock(), streamPattern="O*", failOnDataLoss="false")
    assert next_of(lenient.latestOffset(end, ReadAllAvailable())) == {"ONE-MORE": 11, STREAM: 1001}
    lenient.stop()
    nothing = reader(cluster, Clock(), streamPattern="Z*")
    with pytest.raises(OptionError, match="no stream matches 'Z\\*'"):
        nothing.initialOffset()
    nothing.stop()
