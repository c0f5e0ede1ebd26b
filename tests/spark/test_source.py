"""format("jetraft") in a real Spark: exact rows in batches and streams while replicas die.

The replicas are fakes with faults on demand; test_cluster.py reads from real nodes."""

from __future__ import annotations

import json
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


def requests_of(cluster: Cluster) -> list[dict[str, Any]]:
    found = [json.loads(body) for peer in cluster.peers for body in peer.requests]
    for peer in cluster.peers:
        peer.requests.clear()
    return found


def test_filters_and_columns_reach_the_brokers(spark: Any, cluster: Cluster) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        whole = table(spark, cluster, pushdown="true")
        assert whole.where("seq > 100 and seq <= 150").count() == 50
        (asked,) = requests_of(cluster)
        assert (asked["first"], asked["last"]) == (101, 150)
        late = whole.where(f"time >= timestamp_micros({(START_NS + 15_000_000) // 1000})")
        assert late.agg({"seq": "min"}).first()[0] == 10_000
        assert requests_of(cluster)[0]["first"] == 10_000
        some = whole.where("subject in ('orders.eu.3', 'orders.us.4') and seq < 1000")
        assert some.count() == 200
        (asked,) = requests_of(cluster)
        assert asked["subjects"] == ["orders.eu.3", "orders.us.4"]
        assert whole.where("subject like 'orders.eu.%' and data is not null").count() == ROWS // 2
        assert requests_of(cluster)[0]["subjects"] == ["orders.eu.>"]
        assert whole.where("subject = 'nobody here'").count() == 0
        assert requests_of(cluster) == []
        careful = table(spark, cluster)  # without the option, Spark filters
        one, other = careful.where("seq = 7"), careful.where("seq > 10")
        assert (one.union(other).count(), careful.count()) == (ROWS - 9, ROWS)
        assert {asked["last"] for asked in requests_of(cluster)} == {ROWS}
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert table(spark, cluster, columns="seq").agg({"seq": "sum"}).first()[0] == sum(
        range(1, ROWS + 1)
    )
    assert requests_of(cluster)[0]["columns"] == ["seq"]


def test_a_view_in_sql_several_streams_and_header_maps(spark: Any, cluster: Cluster) -> None:
    cluster.stores["OTHER"] = Store.filled(100)
    options = f"servers '{cluster.servers}', streamPattern 'O*', includeHeaders 'map'"
    spark.sql(
        f"CREATE TEMPORARY VIEW orders USING jetraft OPTIONS ({options}, endingOffsets '101')"
    )
    try:
        counted = spark.sql(
            "SELECT stream, count(*), sum(headers['Trace'][0]) FROM orders "
            "GROUP BY stream ORDER BY stream"
        )
        traced = float(sum(range(4, 101, 4)))
        assert [tuple(row) for row in counted.collect()] == [
            (STREAM, 100, traced),
            ("OTHER", 100, traced),
        ]
    finally:
        spark.sql("DROP VIEW orders")
    spark.sql(f"CREATE TABLE orders USING jetraft OPTIONS ({options})")
    try:
        with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
            spark.sql("SELECT * FROM orders").collect()
    finally:
        spark.sql("DROP TABLE orders")


def test_mistakes_are_told_by_the_driver_before_a_task_starts(spark: Any, cluster: Cluster) -> None:
    def said(**options: str) -> str:
        with pytest.raises(Exception) as failed:  # noqa: PT011 - the callers look
            table(spark, cluster, **options).count()
        for peer in cluster.peers:
            assert not peer.requests, "a task had started"
        return str(failed.value)

    assert "unknown option 'startingoffset'" in said(startingOffset="100").lower()
    assert "subjects: 'a..b' is not a valid subject" in said(subjects="a..b")
    assert f"stream {STREAM} ends at {ROWS}" in said(startingOffsets=str(ROWS + 2))
    silent = said(servers="127.0.0.1:1", connectTimeoutMs="200")
    assert "no server answers: check the option servers. 127.0.0.1:1" in silent
    assert "cannot read the secret 'file:/none'" in said(credentials="file:/none")
    assert "tlsCa '/none.pem'" in said(tls="true", tlsCa="/none.pem")
    with pytest.raises(Exception, match="stream NONE: stream not found"):
        spark.read.format("jetraft").option("servers", cluster.servers).load("NONE").count()
    wrong = spark.read.format("jetraft").schema("seq string").option("servers", cluster.servers)
    with pytest.raises(Exception, match="column seq is a bigint"):
        wrong.load(STREAM).count()


def test_no_secret_is_in_a_plan(spark: Any, cluster: Cluster) -> None:
    frame = table(spark, cluster, user="u", password="hush-1", token="hush-2")
    plans = frame._jdf.queryExecution().toString()
    assert "jetraft" in plans
    assert "hush" not in plans
