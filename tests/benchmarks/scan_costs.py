"""What writing and reading a stream as a table costs, without Spark: CPU seconds per million rows.

Usage: python tests/benchmarks/scan_costs.py [rows] [nodes]
Rows of 128 B on a thousand subjects are written by one writer in blocks, then read in several ways.
`broker` is the CPU of all nodes, `reader` that of this process; `bytes` is what nodes have sent."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from broker.bench.load import LoadClient
from broker.bench.scenarios import create_stream
from broker.client import scan_batches
from broker.local import LocalCluster
from broker.scan.arrow_blocks import BlockCutter
from broker.scan.client import Login, parse_endpoint
from broker.scan.writer import BlockWriter
from tests.benchmarks.spark_vs_parquet import used

SIZE = 128
BATCH = 10_000


def batches(rows: int) -> list[pa.RecordBatch]:
    noise = os.urandom(SIZE * BATCH)
    data = [noise[i * SIZE : (i + 1) * SIZE] for i in range(BATCH)]
    found = []
    for first in range(0, rows, BATCH):
        subjects = [f"ROWS.{(first + i) % 1000}" for i in range(min(BATCH, rows - first))]
        columns = {"subject": subjects, "data": data[: len(subjects)]}
        found.append(pa.RecordBatch.from_pydict(columns))
    return found


def write(cluster: LocalCluster, made: list[pa.RecordBatch]) -> None:
    servers = [parse_endpoint(url) for url in cluster.urls]
    out = BlockWriter(servers, Login(), stream="ROWS", writer="bench/0", epoch=0)
    cutter = BlockCutter(subject="", bytes_max=out.max_block(), rows_max=8192)
    for batch in made:
        for block, rows in cutter.take(batch):
            out.write(block, rows)
    for block, rows in cutter.rest():
        out.write(block, rows)
    out.finish()


def sent(cluster: LocalCluster) -> float:
    """Bytes of scans, as the nodes count them."""
    total = 0.0
    for node in cluster.nodes:
        url = f"http://127.0.0.1:{node.http_port}/metrics"
        text = urllib.request.urlopen(url, timeout=10).read().decode()
        found = [line for line in text.splitlines() if line.startswith("jetraft_scan_sent_bytes")]
        total += float(found[0].rsplit(" ", 1)[1])
    return total


def measured(cluster: LocalCluster, rows: int, name: str, work: Callable[[], int]) -> None:
    nodes = [node.pid for node in cluster.nodes]
    before, ours, bytes_before = used(nodes), time.process_time(), sent(cluster)
    begun = time.perf_counter()
    count = work()
    wall = time.perf_counter() - begun
    broker = (used(nodes) - before) / rows * 1e6
    reader = (time.process_time() - ours) / rows * 1e6
    megabytes = (sent(cluster) - bytes_before) / 1e6
    print(
        f"{name:24} {count:>9,} rows {wall:6.2f} s  broker {broker:.3f}  reader {reader:.3f}"
        f" CPU s/M {megabytes:8.1f} MB"
    )


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    nodes = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with (
        tempfile.TemporaryDirectory(prefix="scans-") as place,
        LocalCluster(Path(place), size=nodes, name="scans") as cluster,
    ):
        client = LoadClient(cluster.nodes[0].client_port)
        create_stream(client, "ROWS", replicas=nodes)
        client.close()
        servers = ",".join(cluster.urls)
        made = batches(rows)

        def wrote() -> int:
            write(cluster, made)
            return rows

        def read(**options: object) -> Callable[[], int]:
            def work() -> int:
                found = scan_batches("ROWS", servers=servers, **options)  # type: ignore[arg-type]
                return sum(batch.num_rows for batch in found)

            return work

        measured(cluster, rows, "write", wrote)
        measured(cluster, rows, "all columns", read())
        measured(cluster, rows, "all columns again", read())
        measured(cluster, rows, "seq", read(columns=["seq"]))
        measured(cluster, rows, "seq, subject, time", read(columns=["seq", "subject", "time"]))
        middle = rows // 2
        measured(cluster, rows, "1 % by sequence", read(first=middle, last=middle + rows // 100))
        measured(cluster, rows, "0.1 % by subject", read(subjects=["ROWS.7"]))


if __name__ == "__main__":
    main()
