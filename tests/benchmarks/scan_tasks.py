"""Many tasks scan one stream at once, half of them slowly, while a publisher waits for each ack:
`python -m tests.benchmarks.scan_tasks [--rows 400000] [--size 1024]`.

24 tasks on a stream with one replica, 64 on one with three. Each reads its own share of the rows,
from a pool of processes, as Spark's executors do; slow ones pause after every block. All must get
every row once. Fair: the slowest task beside the fastest one of its kind. The publisher's 99th
percentile is measured before and during the scans."""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from broker.bench.load import LoadClient
from broker.bench.scenarios import create_stream
from broker.local import LocalCluster
from broker.scan.client import Login, Planner, ScanRange, endpoints_of, parse_endpoint, read_range

PROCESSES = 4
SLOW_S = 0.02  # after every block
ALONE_S = 5.0
CHUNK = 500


class Task(NamedTuple):
    wanted: ScanRange
    slow: bool


class Outcome(NamedTuple):
    slow: bool
    rows: int
    took_s: float


def read(task: Task) -> Outcome:
    begun, rows = time.perf_counter(), 0
    for piece in read_range(task.wanted, Login()):
        rows += piece.high - piece.low + 1
        if task.slow:
            time.sleep(SLOW_S)
    return Outcome(task.slow, rows, time.perf_counter() - begun)


def read_all(tasks: list[Task], start: Any, results: Any) -> None:
    """One process: its tasks begin together, as those of an executor."""
    start.wait()
    with ThreadPoolExecutor(len(tasks)) as threads:
        results.put(list(threads.map(read, tasks)))


class Publisher(threading.Thread):
    """One message after the other into a stream of its own."""

    def __init__(self, port: int, stream: str) -> None:
        super().__init__(name="publisher")
        self._port, self._stream = port, stream
        self.waits: list[float] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        client = LoadClient(self._port)
        while not self.stopping.is_set():
            begun = time.perf_counter()
            client.request(f"{self._stream}.a", b"x" * 128)
            self.waits.append(time.perf_counter() - begun)
        client.close()

    def p99_ms(self) -> float:
        waits, self.waits = self.waits, []
        return statistics.quantiles(waits, n=100)[98] * 1000


def fill(cluster: LocalCluster, stream: str, rows: int, size: int, replicas: int) -> None:
    client = LoadClient(cluster.nodes[0].client_port)
    create_stream(client, stream, replicas=replicas)
    line = b"PUB %b.a %d\r\n%b\r\n" % (stream.encode(), size, b"x" * size)
    for _ in range(0, rows, CHUNK):
        client.send(line * CHUNK)
        client.flush()
    while True:
        state: Any = client.request(f"$JS.API.STREAM.INFO.{stream}")["state"]
        if state["last_seq"] >= rows:
            break
        time.sleep(0.05)
    client.close()


def tasks_of(cluster: LocalCluster, stream: str, count: int) -> list[Task]:
    planner = Planner(endpoints_of(",".join(cluster.urls)), Login())
    plan = planner.plan(stream)
    planner.close()
    endpoints = [parse_endpoint(replica.address) for replica in plan.replicas]
    found = []
    for number in range(count):
        first = plan.last_seq * number // count + 1
        last = plan.last_seq * (number + 1) // count
        turn = number // 2 % len(endpoints)  # slow and fast ones on every replica
        tried = tuple(endpoints[turn:] + endpoints[:turn])
        found.append(Task(ScanRange(stream, plan.id, first, last, tried), slow=number % 2 == 1))
    return found


def measure(cluster: LocalCluster, replicas: int, count: int, rows: int, size: int) -> bool:
    stream, others = f"ROWS{replicas}", f"PUBS{replicas}"
    fill(cluster, stream, rows, size, replicas)
    fill(cluster, others, CHUNK, 128, replicas)
    tasks = tasks_of(cluster, stream, count)
    publisher = Publisher(cluster.nodes[0].client_port, others)
    publisher.start()
    time.sleep(ALONE_S)
    alone = publisher.p99_ms()
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    readers = [
        context.Process(target=read_all, args=(tasks[k::PROCESSES], start, results))
        for k in range(PROCESSES)
    ]
    for reader in readers:
        reader.start()
    time.sleep(2.0)  # imports
    publisher.p99_ms()
    start.set()
    outcomes = [one for _ in readers for one in results.get(timeout=600)]
    during = publisher.p99_ms()
    publisher.stopping.set()
    publisher.join()
    for reader in readers:
        reader.join()
    got = sum(one.rows for one in outcomes)
    exact = got >= rows and len(outcomes) == count
    print(f"R{replicas}, {count} tasks: {got:,} rows of {size} B, {'all' if exact else 'NOT ALL'}")
    for kind in (False, True):
        each = [one.took_s for one in outcomes if one.slow is kind]
        print(
            f"  {'slow' if kind else 'fast'}: {min(each):.2f} to {max(each):.2f} s, "
            f"{max(each) / min(each):.2f}x (bar 2x)"
        )
    print(f"  publisher p99: {alone:.1f} ms alone, {during:.1f} ms during it (bar 2x)")
    return exact


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--size", type=int, default=1024)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="tasks-") as place,
        LocalCluster(Path(place), name="tasks") as cluster,
    ):
        good = [
            measure(cluster, replicas, count, options.rows, options.size)
            for replicas, count in ((1, 24), (3, 64))
        ]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
