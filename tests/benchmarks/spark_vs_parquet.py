"""Spark's scan of a stream beside its scan of the same rows in parquet: CPU seconds per million.

Usage: python tests/benchmarks/spark_vs_parquet.py [rows] [rounds]
Three nodes, a replicated stream of 128 B random payloads, `local[2]`. Both read all columns into a
noop sink, in turns. CPU counts the JVM, its Python workers and the brokers (idle for parquet)."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.bench.load import LoadClient
from broker.bench.scenarios import create_stream
from broker.local import LocalCluster

CHUNK = 2000
SIZE = 128


def fill(cluster: LocalCluster, rows: int) -> None:
    """Random payloads, so that parquet gains nothing by encoding them."""
    client = LoadClient(cluster.nodes[0].client_port)
    create_stream(client, "ROWS", replicas=3)
    for first in range(0, rows, CHUNK):
        lines = [
            b"PUB ROWS.%d %d\r\n%b\r\n" % (i % 1000, SIZE, os.urandom(SIZE))
            for i in range(first, min(first + CHUNK, rows))
        ]
        client.send(b"".join(lines))
        client.flush()
    while True:
        state: Any = client.request("$JS.API.STREAM.INFO.ROWS")["state"]
        if state["last_seq"] == rows:
            break
        time.sleep(0.05)
    client.close()


def descendants(pid: int) -> list[int]:
    """The process and everything it started, as /proc tells."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        current = queue.pop()
        found.append(current)
        queue.extend(parents.get(current, []))
    return found


def used(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(fields[i]) for i in (11, 12, 13, 14)) / 100  # with reaped children
    return total


def measured(work: Callable[[], None], rows: int) -> float:
    """CPU of this process, the JVM and its workers, and of the brokers: all are ours."""
    before = used(descendants(os.getpid()))
    work()
    return (used(descendants(os.getpid())) - before) / rows * 1e6


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with (
        tempfile.TemporaryDirectory(prefix="spark-") as place,
        LocalCluster(Path(place) / "nodes", name="rows") as cluster,
    ):
        fill(cluster, rows)
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "3g")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        servers = ",".join(f"127.0.0.1:{node.client_port}" for node in cluster.nodes)
        stream = (
            spark.read.format("jetraft").option("servers", servers).option("stream", "ROWS").load()
        )
        total, count = stream.select(F.sum("seq"), F.count("seq")).first()
        assert (total, count) == (rows * (rows + 1) // 2, rows), "the sum is exact"
        print(f"exact: {count:,} rows, sum of sequences {total:,}")
        path = str(Path(place) / "rows.parquet")
        stream.write.parquet(path)
        parquet = spark.read.parquet(path)
        figures: dict[str, list[float]] = {"jetraft": [], "parquet": []}
        for turn in range(rounds):
            order = ["jetraft", "parquet"] if turn % 2 == 0 else ["parquet", "jetraft"]
            for name in order:
                frame = stream if name == "jetraft" else parquet
                begun = time.perf_counter()
                save = frame.write.format("noop").mode("overwrite").save
                cpu = measured(save, rows)
                wall = time.perf_counter() - begun
                figures[name].append(cpu)
                print(f"round {turn + 1} {name:8} {cpu:.2f} CPU s/M  {wall:.2f} s")
        spark.stop()
    ours, theirs = (statistics.median(figures[name]) for name in ("jetraft", "parquet"))
    print(f"median: jetraft {ours:.2f}, parquet {theirs:.2f} CPU s/M: {ours / theirs:.2f}x")


if __name__ == "__main__":
    main()
