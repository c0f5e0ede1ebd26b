"""Twelve slow tasks of three executors read one stream with one replica, and all of them finish.

Usage: python tests/benchmarks/spark_slow_tasks.py [rows] [seconds per batch]
`local-cluster[3,4,1024]`: three executors of four cores, so all tasks scan the same node at once.
Rows of 1 KB; a mapInPandas pauses for every batch that it gets. The rows are counted and summed."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from broker.bench.load import LoadClient
from broker.bench.scenarios import create_stream
from broker.local import LocalCluster
from broker.scan.arrow_blocks import BlockCutter
from broker.scan.client import Login, parse_endpoint
from broker.scan.writer import BlockWriter

SIZE = 1024
TASKS = 12
BATCH = 10_000


def fill(cluster: LocalCluster, rows: int) -> None:
    import pyarrow as pa

    client = LoadClient(cluster.nodes[0].client_port)
    create_stream(client, "ROWS", replicas=1)
    client.close()
    servers = [parse_endpoint(url) for url in cluster.urls]
    out = BlockWriter(servers, Login(), stream="ROWS", writer="fill", epoch=0)
    cutter = BlockCutter(subject="ROWS.a", bytes_max=out.max_block(), rows_max=8192)
    batch = pa.RecordBatch.from_pydict({"data": [os.urandom(SIZE) for _ in range(BATCH)]})
    for first in range(0, rows, BATCH):
        for block, count in cutter.take(batch.slice(0, min(BATCH, rows - first))):
            out.write(block, count)
    for block, count in cutter.rest():
        out.write(block, count)
    out.finish()


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    pause_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    def slowly(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            time.sleep(pause_s)
            yield frame[["seq"]]

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with (
        tempfile.TemporaryDirectory(prefix="slow-") as place,
        LocalCluster(Path(place) / "nodes", name="rows") as cluster,
    ):
        begun = time.perf_counter()
        fill(cluster, rows)
        print(f"{rows:,} rows of {SIZE} B stored, {time.perf_counter() - begun:.0f} s", flush=True)
        spark = (
            SparkSession.builder.master("local-cluster[3,4,1024]")
            .config("spark.ui.enabled", "false")
            .config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", ""))
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        reader = spark.read.format("jetraft").option("servers", ",".join(cluster.urls))
        table = reader.option("minPartitions", TASKS).load("ROWS")
        begun = time.perf_counter()
        found = table.mapInPandas(slowly, "seq bigint").select(F.count("seq"), F.sum("seq")).first()
        took = time.perf_counter() - begun
        assert tuple(found) == (rows, rows * (rows + 1) // 2), found
        tasks = table.rdd.getNumPartitions()
        print(f"{tasks} tasks, {pause_s} s per batch: {took:.0f} s, every row once")
        spark.stop()


if __name__ == "__main__":
    main()
