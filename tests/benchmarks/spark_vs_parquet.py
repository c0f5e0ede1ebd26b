"""Spark and a stream: scans beside the same rows in parquet, filters, the sink, an idle query.

Usage: python tests/benchmarks/spark_vs_parquet.py [rows] [rounds] [parts]
`parts` is any of scans,filters,sink1,sink3,idle; all by default.
Three nodes, a replicated stream of 128 B random payloads, `local[2]`. Scans go into a noop sink, in
turns with uncompressed parquet and with a Python source over mapped Arrow files, which is the floor
of Spark's interface for Python sources (spark_floor.py); figures are medians. CPU is that of the
JVM and this process, of the Python workers and of the brokers (idle for parquet), added up. A query
costs Spark a fixed 0.1 to 0.3 CPU s, whatever it reads: "nothing" reads one row, without and with a
filter that Spark passes on, and shares of filters are given with and without that."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from broker.bench.load import LoadClient
from broker.bench.scenarios import create_stream, settle
from broker.local import LocalCluster
from broker.scan.arrow_blocks import BlockCutter
from broker.scan.client import Login, parse_endpoint
from broker.scan.writer import BlockWriter
from tests.benchmarks.spark_floor import register, write_files

CHUNK = 10_000
WARM_UP = 3  # queries of each kind before the first that counts: the JVM compiles
WARM_UP_SMALL = 10  # the same, of queries that read little or nothing
SIZE = 128
EVERY = ["seq", "subject", "time", "headers", "data"]
PARTS = ["scans", "filters", "sink1", "sink3", "idle"]


def fill(cluster: LocalCluster, rows: int) -> None:
    """Random payloads, so that parquet gains nothing by encoding them; a thousand subjects, which
    take turns."""
    import numpy as np
    import pyarrow as pa

    client = LoadClient(cluster.nodes[0].client_port)
    create_stream(client, "ROWS", replicas=3)
    servers = [parse_endpoint(url) for url in cluster.urls]
    out = BlockWriter(servers, Login(), stream="ROWS", writer="fill", epoch=0)
    cutter = BlockCutter(subject="", bytes_max=out.max_block(), rows_max=8192)
    subjects = pa.array([f"ROWS.{i % 1000}" for i in range(CHUNK)])
    ends = pa.py_buffer(np.arange(CHUNK + 1, dtype=np.int32) * SIZE)
    for first in range(0, rows, CHUNK):
        noise = pa.py_buffer(os.urandom(SIZE * CHUNK))
        data = pa.Array.from_buffers(pa.binary(), CHUNK, [None, ends, noise])
        batch = pa.RecordBatch.from_arrays([subjects, data], names=["subject", "data"])
        for block, count in cutter.take(batch.slice(0, min(CHUNK, rows - first))):
            out.write(block, count)
    for block, count in cutter.rest():
        out.write(block, count)
    out.finish()
    while True:
        state: Any = client.request("$JS.API.STREAM.INFO.ROWS")["state"]
        if state["last_seq"] == rows:
            break
        time.sleep(0.05)
    client.close()
    settle(cluster)


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


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def used(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(fields[i]) for i in (11, 12, 13, 14)) / 100  # with reaped children
    return total


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of one query, and the bytes that scans of the brokers sent for it."""

    spark: float  # the JVM, and this process
    workers: float  # Python processes of Spark
    brokers: float
    sent: float

    @property
    def cpu(self) -> float:
        return self.spark + self.workers + self.brokers

    def per_million(self, rows: int) -> str:
        parts = (self.cpu, self.spark, self.workers, self.brokers)
        total, *shares = (f"{part / rows * 1e6:.3f}" for part in parts)
        return f"{total} CPU s/M (Spark {shares[0]}, workers {shares[1]}, brokers {shares[2]})"


def median(costs: Sequence[Cost]) -> Cost:
    """The query with the median CPU."""
    return sorted(costs, key=lambda one: one.cpu)[len(costs) // 2]


class Bench:
    """One session, three nodes, and the same rows as an uncompressed parquet file."""

    def __init__(self, spark: Any, cluster: LocalCluster, rows: int, rounds: int) -> None:
        self.spark, self.cluster, self.rows, self.rounds = spark, cluster, rows, rounds
        self.servers = ",".join(f"127.0.0.1:{node.client_port}" for node in cluster.nodes)

    def stream(self, **options: str) -> Any:
        """A new load() for each query: see docs/spark.md about filters."""
        reader = self.spark.read.format("jetraft").option("servers", self.servers)
        return reader.options(**options).load("ROWS")

    def _now(self) -> Cost:
        brokers = {node.pid for node in self.cluster.nodes}
        java = {pid for pid in descendants(os.getpid()) if command(pid) == "java"}
        everything = {*descendants(os.getpid())} - brokers
        direct = {os.getpid(), *java}
        documents: list[Any] = [node.http("/varz") for node in self.cluster.nodes]
        sent = sum(document["jetstream"]["scans"]["sent_bytes"] for document in documents)
        return Cost(used([*direct]), used([*(everything - direct)]), used([*brokers]), sent)

    def cost(self, work: Callable[[], object], times: int = 1) -> Cost:
        """Of one query, from several one after the other: the clock of the kernel ticks in 10 ms.
        The documents of the brokers are asked for between the queries only."""
        before = self._now()
        for _ in range(times):
            work()
        after = self._now()
        pairs = zip(astuple(before), astuple(after), strict=True)
        return Cost(*((then - now) / times for now, then in pairs))

    def noop(self, frame: Callable[[], Any]) -> Callable[[], object]:
        return lambda: frame().write.format("noop").mode("overwrite").save()

    def beside(self, title: str, works: dict[str, Callable[[], Any]], bar: float) -> None:
        """The first of them beside the others, in turns."""
        costs: dict[str, list[Cost]] = {name: [] for name in works}
        for turn in range(WARM_UP + self.rounds):
            for name in sorted(works, reverse=turn % 2 == 1):
                cost = self.cost(self.noop(works[name]))
                costs[name] += [cost] if turn >= WARM_UP else []
        middle = {name: median(costs[name]) for name in works}
        print(f"{title}:")
        for name, one in middle.items():
            factors = [f"{one.cpu / middle[to].cpu:.2f}x {to}" for to in works if to != name]
            print(f"  {name} {one.per_million(self.rows)}: {', '.join(factors)}")
        print(f"  (bar {bar}x parquet)", flush=True)

    def mapped(self, place: Path, columns: list[str], last: int | None = None) -> Callable[[], Any]:
        """The same rows in files; Spark learns the schema from a stream."""
        write_files(place, self.servers, "ROWS", columns, last)
        schema = self.stream(columns=",".join(columns)).schema
        return lambda: self.spark.read.format("mapped").schema(schema).load(str(place))

    def scans(self, place: Path) -> None:
        path = str(place / "rows.parquet")
        self.stream().write.parquet(path)
        parquet = self.spark.read.parquet(path)
        for title, columns, bar in (("all columns", EVERY, 1.2), ("select seq", ["seq"], 2)):
            named = ",".join(columns)
            works: dict[str, Callable[[], Any]] = {
                "jetraft": lambda named=named: self.stream(columns=named),
                "parquet": lambda columns=columns: parquet.select(*columns),
                "mapped files": self.mapped(place / f"mapped{len(columns)}", columns),
            }
            self.beside(title, works, bar)

    def filters(self, place: Path, since: Any) -> None:
        """Shares of a full scan, in turns with it."""
        from pyspark.sql import functions as F

        pushed = {"pushdown": "true"}
        behind = self.rows - self.rows // 100
        works: dict[str, tuple[float, Callable[[], Any]]] = {
            "everything": (1, self.stream),
            "nothing, from mapped files": (0, self.mapped(place / "mapped", EVERY, last=1)),
            "nothing": (0, lambda: self.stream(endingOffsets="2")),
            "nothing, by a filter": (0, lambda: self.stream(**pushed).where(F.col("seq") < 2)),
            "1 % by seq": (0.05, lambda: self.stream(**pushed).where(F.col("seq") > behind)),
            "1 % by time": (
                0.05,
                lambda: self.stream(**pushed).where(F.col("time") >= F.lit(since)),
            ),
            "0.1 % by subject": (0.1, lambda: self.stream(subjects="ROWS.7")),
        }
        costs: dict[str, list[Cost]] = {name: [] for name in works}
        for _, frame in works.values():
            self.cost(self.noop(frame), WARM_UP_SMALL)
        for _ in range(self.rounds):
            for name, (_, frame) in works.items():
                times = 1 if name == "everything" else 5
                costs[name].append(self.cost(self.noop(frame), times))
        full = median(costs["everything"])
        print(f"a full scan: {full.cpu:.3f} CPU s, {full.sent / 1e6:.1f} MB")
        for name, (bar, _) in works.items():
            one = median(costs[name])
            fixed = median(costs["nothing, by a filter" if name.startswith("1 %") else "nothing"])
            print(
                f"{name}: {one.cpu:.3f} CPU s (Spark {one.spark:.3f}, workers {one.workers:.3f}, "
                f"brokers {one.brokers:.3f}); of the full scan {one.cpu / full.cpu:.1%}, without "
                f"what reading nothing costs {(one.cpu - fixed.cpu) / (full.cpu - fixed.cpu):.1%}, "
                f"of the brokers' {one.brokers / full.brokers:.1%}, of the bytes "
                f"{one.sent / full.sent:.2%} (bar {bar:.0%})"
            )

    def sink(self, replicas: int, bar: int) -> None:
        name = f"SINK{replicas}"
        client = LoadClient(self.cluster.nodes[0].client_port)
        create_stream(client, name, replicas=replicas)
        payload = "x" * SIZE
        made = self.spark.range(0, self.rows, numPartitions=2).selectExpr(f"'{payload}' as data")

        def write(rows: Any) -> None:
            writer = rows.write.format("jetraft").mode("append").option("servers", self.servers)
            writer.option("subject", f"{name}.a").save(name)

        def make() -> None:
            made.write.format("noop").mode("overwrite").save()

        write(made.limit(100))  # Spark starts its workers
        few = self.spark.range(0, 2, numPartitions=2).selectExpr("'x' as data")
        begun = time.perf_counter()
        write(few)
        fixed = time.perf_counter() - begun
        rates, costs = [], []
        for _ in range(self.rounds):
            begun = time.perf_counter()
            costs.append(self.cost(lambda: write(made)))
            rates.append(self.rows / (time.perf_counter() - begun))
        alone = self.cost(make)
        state: Any = client.request(f"$JS.API.STREAM.INFO.{name}")["state"]
        client.close()
        expected = self.rows * self.rounds + 102
        assert state["messages"] == expected, (state["messages"], expected)
        shown = ", ".join(f"{rate:,.0f}" for rate in rates)
        print(
            f"sink, R{replicas}, rows of {SIZE} B, each stored once: {shown} rows/s, median "
            f"{statistics.median(rates):,.0f} (bar {bar:,}); {median(costs).per_million(self.rows)}"
            f"; two rows take {fixed:.2f} s; making the rows without writing them costs "
            f"{alone.per_million(self.rows)}"
        )

    def idle(self, place: str, seconds: int = 20) -> None:
        settle(self.cluster)
        rest = self.cost(lambda: time.sleep(seconds))
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
        cost = self.cost(lambda: time.sleep(seconds))
        query.stop()
        tens = seconds / 10
        print(
            f"idle query: {cost.cpu / tens:.2f} CPU s in 10 s (Spark {cost.spark / tens:.2f}, "
            f"workers {cost.workers / tens:.2f}, three nodes {cost.brokers / tens:.2f}; bar 0.3); "
            f"without it: Spark {rest.spark / tens:.2f}, three nodes {rest.brokers / tens:.2f}"
        )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    parts = sys.argv[3].split(",") if len(sys.argv) > 3 else PARTS
    if unknown := [part for part in parts if part not in PARTS]:
        raise SystemExit(f"no part {unknown[0]}: choose from {','.join(PARTS)}")
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    os.environ["PYSPARK_PYTHON"] = sys.executable
    with (
        tempfile.TemporaryDirectory(prefix="spark-") as place,
        LocalCluster(Path(place) / "nodes", name="rows") as cluster,
    ):
        fill(cluster, rows if {"scans", "filters"} & {*parts} else CHUNK)
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
        if {"scans", "filters"} & {*parts}:
            total, count = bench.stream().select(F.sum("seq"), F.count("seq")).first()
            assert (total, count) == (rows * (rows + 1) // 2, rows), "the sum is exact"
            print(f"exact: {count:,} rows, sum of sequences {total:,}")
            register(spark)
        if "scans" in parts:
            bench.scans(Path(place))
        if "filters" in parts:
            behind = str(rows - rows // 100)
            bench.filters(Path(place), bench.stream(startingOffsets=behind).first()["time"])
        if "sink1" in parts:
            bench.sink(1, 500_000)
        if "sink3" in parts:
            bench.sink(3, 250_000)
        if "idle" in parts:
            bench.idle(str(Path(place) / "checkpoint"))
        spark.stop()


if __name__ == "__main__":
    main()
