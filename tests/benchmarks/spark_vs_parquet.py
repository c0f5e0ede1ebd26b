"""Spark and a stream: scans beside the same rows in parquet, filters, the sink, an idle query.

Usage: python tests/benchmarks/spark_vs_parquet.py [rows] [rounds]
Three nodes, a replicated stream of 128 B random payloads, `local[2]`. Scans go into a noop sink, in
turns with uncompressed parquet; figures are medians. CPU counts the JVM, its Python workers and the
brokers (idle for parquet). A query costs Spark a fixed 0.1 to 0.3 CPU s, whatever it reads: with
few rows the shares of filters show little else; those of the brokers and the bytes are the rest."""

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


class Bench:
    """One session, three nodes, and the same rows as an uncompressed parquet file."""

    def __init__(self, spark: Any, cluster: LocalCluster, rows: int, rounds: int) -> None:
        self.spark, self.cluster, self.rows, self.rounds = spark, cluster, rows, rounds
        self.servers = ",".join(f"127.0.0.1:{node.client_port}" for node in cluster.nodes)
        self._full: tuple[float, float, int] = (0.0, 0.0, 0)

    def stream(self, **options: str) -> Any:
        """A new load() for each query: see docs/spark.md about filters."""
        reader = self.spark.read.format("jetraft").option("servers", self.servers)
        return reader.options(**options).load("ROWS")

    def sent_bytes(self) -> int:
        documents: list[Any] = [node.http("/varz") for node in self.cluster.nodes]
        return sum(document["jetstream"]["scans"]["sent_bytes"] for document in documents)

    def cost(self, frame: Callable[[], Any]) -> tuple[float, float, int]:
        """CPU of everything, CPU of the brokers, bytes that they sent."""
        brokers = [node.pid for node in self.cluster.nodes]
        before, bytes_before = used(brokers), self.sent_bytes()
        work = frame().write.format("noop").mode("overwrite").save
        return (
            measured(work, self.rows),
            (used(brokers) - before) / self.rows * 1e6,
            self.sent_bytes() - bytes_before,
        )

    def against_parquet(
        self, title: str, ours: Callable[[], Any], parquet: Any, bar: float
    ) -> None:
        figures: dict[str, list[tuple[float, float, int]]] = {"jetraft": [], "parquet": []}
        frames = {"jetraft": ours, "parquet": lambda: parquet}
        for turn in range(self.rounds):
            for name in ("jetraft", "parquet") if turn % 2 == 0 else ("parquet", "jetraft"):
                figures[name].append(self.cost(frames[name]))
        mine, other = (statistics.median(one[0] for one in figures[n]) for n in frames)
        broker = statistics.median(one[1] for one in figures["jetraft"])
        if title == "all columns":
            self._full = (mine, broker, figures["jetraft"][0][2])
        print(
            f"{title}: jetraft {mine:.2f} (brokers {broker:.2f}), parquet {other:.2f} CPU s/M: "
            f"{mine / other:.2f}x (bar {bar}x)"
        )

    def filtered(self, title: str, ours: Callable[[], Any], bar: float) -> None:
        self.cost(ours)  # Spark starts the workers that plan
        figures = [self.cost(ours) for _ in range(self.rounds)]
        total, broker = (statistics.median(one[k] for one in figures) for k in (0, 1))
        shares = [one / full for one, full in zip((total, broker), self._full, strict=False)]
        print(
            f"{title}: of the full scan {shares[0]:.1%} of the CPU of everything, {shares[1]:.1%} "
            f"of the brokers', {figures[0][2] / self._full[2]:.1%} of the bytes (bar {bar:.0%})"
        )

    def sink(self, replicas: int, bar: int) -> None:
        client = LoadClient(self.cluster.nodes[0].client_port)
        create_stream(client, f"SINK{replicas}", replicas=replicas)
        client.close()
        payload = "x" * SIZE
        made = self.spark.range(0, self.rows, numPartitions=2).selectExpr(f"'{payload}' as data")
        made.persist().count()
        options = {"servers": self.servers, "subject": f"SINK{replicas}.a"}
        few = made.limit(100).write.format("jetraft").mode("append").options(**options)
        few.save(f"SINK{replicas}")  # Spark starts its workers
        begun = time.perf_counter()
        writer = made.write.format("jetraft").mode("append").options(**options)
        writer.save(f"SINK{replicas}")
        rate = self.rows / (time.perf_counter() - begun)
        made.unpersist()
        print(f"sink, R{replicas}, rows of {SIZE} B: {rate:,.0f}/s (bar {bar:,})")

    def idle(self, place: str, seconds: int = 20) -> None:
        source = self.spark.readStream.format("jetraft").option("servers", self.servers)
        query = (
            source.load("ROWS")
            .writeStream.format("noop")
            .option("checkpointLocation", place)
            .start()
        )
        while len(query.recentProgress) < 1:
            time.sleep(0.5)
        time.sleep(5)
        before = used(descendants(os.getpid()))
        time.sleep(seconds)
        cpu = (used(descendants(os.getpid())) - before) / seconds * 10
        query.stop()
        print(f"idle query: {cpu:.2f} CPU s in 10 s, with the three nodes (bar 0.3)")


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
            .config("spark.sql.parquet.compression.codec", "uncompressed")
            .config("spark.sql.python.filterPushdown.enabled", "true")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        bench = Bench(spark, cluster, rows, rounds)
        total, count = bench.stream().select(F.sum("seq"), F.count("seq")).first()
        assert (total, count) == (rows * (rows + 1) // 2, rows), "the sum is exact"
        print(f"exact: {count:,} rows, sum of sequences {total:,}")
        path = str(Path(place) / "rows.parquet")
        bench.stream().write.parquet(path)
        parquet = spark.read.parquet(path)
        since = parquet.where(F.col("seq") == rows - rows // 100).first()["time"]
        pushed = {"pushdown": "true"}
        bench.against_parquet("all columns", bench.stream, parquet, 1.2)
        columns = {"columns": "seq"}
        bench.against_parquet(
            "select seq", lambda: bench.stream(**columns), parquet.select("seq"), 2
        )
        last = F.col("seq") > rows - rows // 100
        bench.filtered("1 % by seq", lambda: bench.stream(**pushed).where(last), 0.05)
        late = F.col("time") >= F.lit(since)
        bench.filtered("1 % by time", lambda: bench.stream(**pushed).where(late), 0.05)
        bench.filtered("0.1 % by subject", lambda: bench.stream(subjects="ROWS.7"), 0.1)
        bench.sink(1, 500_000)
        bench.sink(3, 250_000)
        bench.idle(str(Path(place) / "checkpoint"))
        spark.stop()


if __name__ == "__main__":
    main()
