"""format("jetraft") in a real Spark: exact rows in batches and streams while replicas die.

The replicas are fakes with faults on demand; test_cluster.py reads from real nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import finished
from tests.support.scan_peers import (
    START_NS,
    STREAM,
    Cluster,
    Store,
    data_of,
    headers_of,
    subject_of,
)

ROWS = 20_000


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(Store.filled(ROWS)) as running:
        yield running


def table(spark: Any, cluster: Cluster, **options: str) -> Any:
    reader = spark.read.format("jetraft").option("servers", cluster.servers)
    return reader.option("stream", STREAM).options(**options).load()


def totals(frame: Any) -> tuple[int, int, int, int]:
    """(rows, sum of sequences, distinct sequences, bytes of data)."""
    row = frame.selectExpr(
        "count(*)", "coalesce(sum(seq), 0)", "count(distinct seq)", "coalesce(sum(length(data)), 0)"
    ).first()
    return tuple(row)


def expected(seqs: list[int]) -> tuple[int, int, int, int]:
    return len(seqs), sum(seqs), len(set(seqs)), sum(len(data_of(seq)) for seq in seqs)


def test_a_batch_reads_every_message_once_from_the_followers(spark: Any, cluster: Cluster) -> None:
    frame = table(spark, cluster, maxRecordsPerPartition="6000")
    assert frame.rdd.getNumPartitions() == 4
    assert totals(frame) == expected(list(range(1, ROWS + 1)))
    assert all(peer.requests for peer in cluster.peers[:-1])
    assert not cluster.leader.requests


def test_columns_hold_the_fields_of_the_messages(spark: Any, cluster: Cluster) -> None:
    frame = table(spark, cluster, startingOffsets="17", endingOffsets="25")
    assert frame.dtypes == [
        ("seq", "bigint"),
        ("subject", "string"),
        ("time", "timestamp"),
        ("headers", "binary"),
        ("data", "binary"),
    ]
    rows = frame.selectExpr("*", "unix_micros(time) as us").orderBy("seq").collect()
    assert [row.seq for row in rows] == list(range(17, 25))
    for row in rows:
        assert row.subject.encode() == subject_of(row.seq)
        assert bytes(row.data) == data_of(row.seq)
        assert (bytes(row.headers) if row.headers else b"") == headers_of(row.seq)
        assert row.us == (START_NS + row.seq * 1500) // 1000


def test_subjects_schema_and_deletes_narrow_the_table(spark: Any, cluster: Cluster) -> None:
    cluster.leader.store.delete(3, 13, 5000)
    reader = spark.read.format("jetraft").schema("subject string, seq bigint")
    frame = reader.options(servers=cluster.servers, subjects="orders.eu.3").load(STREAM)
    assert frame.columns == ["subject", "seq"]
    seqs = [row.seq for row in frame.collect()]
    assert sorted(seqs) == [seq for seq in range(23, ROWS, 10)]
    assert "headers" not in table(spark, cluster, includeHeaders="none").columns


def test_a_replica_that_dies_in_the_middle_of_a_partition_loses_no_row(
    spark: Any, cluster: Cluster
) -> None:
    for peer in cluster.peers[:-1]:  # both followers die while they send; the leader finishes
        peer.faults.die_after_bytes = 200_000
    assert totals(table(spark, cluster, minPartitions="2")) == expected(list(range(1, ROWS + 1)))
    assert cluster.leader.requests


def test_an_empty_stream_and_an_empty_range_are_empty_tables(spark: Any) -> None:
    with Cluster(Store()) as empty:
        assert totals(table(spark, empty)) == (0, 0, 0, 0)


def test_lost_messages_fail_the_query_unless_configured_otherwise(
    spark: Any, cluster: Cluster
) -> None:
    cluster.leader.store.expire(5000)
    with pytest.raises(Exception, match="no longer has the messages 100 to 5000"):
        table(spark, cluster, startingOffsets="100").count()
    lenient = table(spark, cluster, startingOffsets="100", failOnDataLoss="false")
    assert totals(lenient) == expected(list(range(5001, ROWS + 1)))


def test_a_wrong_option_is_explained(spark: Any, cluster: Cluster) -> None:
    with pytest.raises(Exception, match="unknown option"):
        table(spark, cluster, startingOffset="100")


def run_available_now(spark: Any, cluster: Cluster, folder: Path, **options: str) -> Any:
    """One run of the query. It appends to parquet files, so a later run continues."""
    frame = spark.readStream.format("jetraft").option("servers", cluster.servers)
    writer = (
        frame.option("stream", STREAM)
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
    return finished(lambda: writer.start(str(folder / "out")))


def test_a_query_continues_where_it_stopped(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    options = {"startingOffsets": "earliest", "maxRecordsPerTrigger": "8000"}
    first = run_available_now(spark, cluster, tmp_path, **options)
    sizes = [progress.numInputRows for progress in first.recentProgress]
    assert [size for size in sizes if size] == [8000, 8000, 4000]
    cluster.leader.store.grow(3000)
    cluster.stop_peer(cluster.peers[0])
    second = run_available_now(spark, cluster, tmp_path, **options)
    assert sum(progress.numInputRows for progress in second.recentProgress) == 3000
    found = spark.read.parquet(str(tmp_path / "out"))
    assert totals(found) == expected(list(range(1, ROWS + 3001)))


def test_a_new_query_from_latest_reads_everything_stored_after_it_started(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    run_available_now(spark, cluster, tmp_path)  # nothing to read yet: it only stores its start
    cluster.leader.store.grow(500)
    run_available_now(spark, cluster, tmp_path)
    found = spark.read.parquet(str(tmp_path / "out"))
    assert totals(found) == expected(list(range(ROWS + 1, ROWS + 501)))
