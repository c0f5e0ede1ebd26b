"""Bulk reads and Spark from three real nodes, one of which is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.client import scan
from broker.local import LocalCluster
from broker.scan.client import Login, Planner, ScanRange, endpoints_of, parse_endpoint, read_range
from broker.scan.protocol import ScanPlan
from tests.spark.conftest import finished
from tests.support.clients import open_client
from tests.support.clusters import run

ROWS = 30_000
WINDOW = 1_000
STREAM = "ORDERS"


async def publish(urls: list[str], first: int, last: int) -> None:
    connection = await open_client(urls)
    context = connection.jetstream(timeout=10, publish_async_max_pending=2 * WINDOW)
    for start in range(first, last + 1, WINDOW):
        stop = min(start + WINDOW, last + 1)
        acks = [
            await context.publish_async(f"orders.{k % 7}", b"%d" % k) for k in range(start, stop)
        ]
        await asyncio.gather(*acks)
    await connection.close()


async def create(urls: list[str]) -> None:
    connection = await open_client(urls)
    await connection.jetstream(timeout=10).add_stream(
        name=STREAM, subjects=["orders.*"], num_replicas=3
    )
    await connection.close()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("nodes"), name="scan") as running:
        run(lambda: create(running.urls))
        run(lambda: publish(running.urls, 1, ROWS))
        yield running


def servers(nodes: LocalCluster) -> str:
    return ",".join(nodes.urls)


def plan_of(nodes: LocalCluster) -> ScanPlan:
    planner = Planner(endpoints_of(servers(nodes)), Login())
    try:
        return planner.plan(STREAM)
    finally:
        planner.close()


def test_a_table_has_every_acked_message_in_order(nodes: LocalCluster) -> None:
    table = scan(STREAM, servers=servers(nodes))
    assert table.column("seq").to_pylist() == list(range(1, ROWS + 1))
    assert [int(data) for data in table.column("data").to_pylist()] == list(range(1, ROWS + 1))
    threes = scan(STREAM, servers=servers(nodes), subjects=["orders.3"], columns=["data"])
    assert [int(d) for d in threes.column(0).to_pylist()] == list(range(3, ROWS + 1, 7))


def test_a_plan_names_every_replica_and_one_leader(nodes: LocalCluster) -> None:
    plan = plan_of(nodes)
    assert (plan.first_seq, plan.last_seq, plan.messages) == (1, ROWS, ROWS)
    assert {replica.name for replica in plan.replicas} == {node.name for node in nodes.nodes}
    assert sum(replica.leader for replica in plan.replicas) == 1


def test_reads_continue_after_a_follower_was_killed(
    spark: Any, nodes: LocalCluster, tmp_path: Path
) -> None:
    """A follower is killed while it sends; then Spark reads a table from the other two."""
    plan = plan_of(nodes)
    followers_first = sorted(plan.replicas, key=lambda replica: replica.leader)
    wanted = ScanRange(
        stream=STREAM,
        id=plan.id,
        first=1,
        last=ROWS,
        endpoints=tuple(parse_endpoint(replica.address) for replica in followers_first),
    )
    (victim,) = [node for node in nodes.nodes if node.name == followers_first[0].name]
    slices = read_range(wanted, Login())
    found = [next(slices)]
    assert found[0].high < ROWS, "the stream fits into one block: nothing is left to read elsewhere"
    victim.kill()
    found += slices
    assert sum(piece.high - piece.low + 1 for piece in found) == ROWS
    assert found[-1].high == ROWS

    table = spark.read.format("jetraft").options(servers=servers(nodes), minPartitions="4")
    total = table.load(STREAM).selectExpr("count(*)", "sum(seq)", "sum(cast(data as string))")
    assert tuple(total.first()) == (ROWS, ROWS * (ROWS + 1) // 2, ROWS * (ROWS + 1) // 2)
    victim.start()
    victim.wait_healthy()


def test_a_streaming_query_follows_the_stream(
    spark: Any, nodes: LocalCluster, tmp_path: Path
) -> None:
    def follow() -> int:
        source = spark.readStream.format("jetraft").option("servers", servers(nodes))
        writer = (
            source.option("startingOffsets", str(ROWS - 999))
            .load(STREAM)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        query = finished(lambda: writer.start(str(tmp_path / "out")))
        return sum(progress.numInputRows for progress in query.recentProgress)

    assert follow() == 1000
    run(lambda: publish(nodes.urls, ROWS + 1, ROWS + 2000))
    assert follow() == 2000
    out = spark.read.parquet(str(tmp_path / "out")).selectExpr("count(distinct seq)", "max(seq)")
    assert tuple(out.first()) == (3000, ROWS + 2000)


async def create_targets(urls: list[str]) -> None:
    connection = await open_client(urls)
    context = connection.jetstream(timeout=10)
    await context.add_stream(name="TABLE", subjects=["table.>"], num_replicas=3)
    await context.add_stream(name="COPY", subjects=["copy"], num_replicas=1)
    await connection.close()


def test_rows_are_written_once_however_often_tasks_and_queries_run(
    spark: Any, nodes: LocalCluster, tmp_path: Path
) -> None:
    run(lambda: create_targets(nodes.urls))
    made = spark.range(1, 5001, numPartitions=3).selectExpr(
        "concat('table.', id % 5) as subject", "cast(id as string) as data"
    )
    for _ in range(2):  # the second time, all of it is there already
        out = made.write.format("jetraft").mode("append").option("servers", servers(nodes))
        out.option("writerId", "table of today").save("TABLE")
    found = scan("TABLE", servers=servers(nodes), columns=["subject", "data"])
    assert sorted(int(data) for data in found.column("data").to_pylist()) == list(range(1, 5001))
    assert set(found.column("subject").to_pylist()) == {f"table.{k}" for k in range(5)}

    def copy() -> None:
        source = spark.readStream.format("jetraft").option("servers", servers(nodes))
        rows = source.options(startingOffsets="earliest", maxRecordsPerTrigger="2000").load("TABLE")
        writer = (
            rows.select("data")
            .writeStream.format("jetraft")
            .options(servers=servers(nodes), stream="COPY", subject="copy")
            .option("checkpointLocation", str(tmp_path / "copied"))
            .trigger(availableNow=True)
        )
        finished(writer.start)

    copy()
    commits = sorted((tmp_path / "copied" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    commits[-1].unlink()  # the query died before its last batch was committed: it is repeated
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    copy()
    copied = scan("COPY", servers=servers(nodes), columns=["data"])
    assert sorted(int(data) for data in copied.column(0).to_pylist()) == list(range(1, 5001))

    for options, says in (
        ({"stream": "NONE", "subject": "x"}, "stream NONE: stream not found"),
        ({"stream": "TABLE"}, "set the option subject, or select a column subject"),
        ({"stream": "TABLE", "subject": "a b"}, "subject: 'a b' is not a valid subject"),
        ({"stream": "TABLE", "subject": "other"}, "does not capture the subject 'other'"),
        ({"stream": "TABLE", "subject": "table.x", "subjects": "y"}, "subjects is of the source"),
    ):
        wrong = made.select("data").write.format("jetraft").mode("append")
        with pytest.raises(Exception, match=says):
            wrong.option("servers", servers(nodes)).options(**options).save()
    source = spark.readStream.format("jetraft").options(servers=servers(nodes)).load("TABLE")
    wrong = source.select("data").writeStream.format("jetraft").options(subject="x", stream="NONE")
    wrong = wrong.options(servers=servers(nodes), checkpointLocation=str(tmp_path / "none"))
    with pytest.raises(Exception, match="stream NONE: stream not found") as failed:
        finished(wrong.start)
    assert "Failed to initialize Python data source writer" in str(failed.value)  # in the driver


async def create_queue(urls: list[str]) -> None:
    connection = await open_client(urls)
    context = connection.jetstream(timeout=10, publish_async_max_pending=2 * WINDOW)
    await context.add_stream(
        name="QUEUE", subjects=["queue"], num_replicas=3, retention="workqueue"
    )
    acks = [await context.publish_async("queue", b"%d" % k) for k in range(WINDOW)]
    await asyncio.gather(*acks)
    await connection.close()


async def left(urls: list[str]) -> int:
    connection = await open_client(urls)
    info = await connection.jetstream(timeout=10).stream_info("QUEUE")
    await connection.close()
    return int(info.state.messages)


def test_a_work_queue_lets_go_of_what_the_checkpoint_has(
    spark: Any, nodes: LocalCluster, tmp_path: Path
) -> None:
    run(lambda: create_queue(nodes.urls))
    source = spark.readStream.format("jetraft").option("servers", servers(nodes))
    writer = (
        source.options(ackConsumer="query", maxRecordsPerTrigger="300")
        .load("QUEUE")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    finished(lambda: writer.start(str(tmp_path / "out")))
    rows = spark.read.parquet(str(tmp_path / "out")).selectExpr("count(distinct seq)", "count(*)")
    assert tuple(rows.first()) == (WINDOW, WINDOW)
    # Spark tells of the last batch when the query runs again
    assert run(lambda: left(nodes.urls)) in (0, WINDOW % 300)
    finished(lambda: writer.start(str(tmp_path / "out")))
    assert run(lambda: left(nodes.urls)) == 0
