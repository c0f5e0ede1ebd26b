"""Many tasks scan one stream at once, half of them slowly, while a publisher waits for each ack:
`python -m tests.benchmarks.scan_tasks [--rows 400000] [--size 1024] [--times 5] [--nice 0]`.

24 tasks on a stream with one replica, 64 on one with three. Each reads its own share of the rows,
several times, from a pool of processes, as Spark's executors do; slow ones pause after every block.
All must get every row. Fair: the slowest task beside the fastest one of its kind. The publisher's
99th percentile is measured before and during the scans. Readers of a real cluster are on other
machines: with `--nice 19` they take only the CPU time that brokers and the publisher leave."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from broker.bench.load import LoadClient
from broker.bench.scenarios import create_stream, settle
from broker.local import LocalCluster
from broker.scan.client import Login, Planner, ScanRange, endpoints_of, parse_endpoint, read_range

PROCESSES = 4
TASKS = {1: 24, 3: 64}  # by replicas
SLOW_S = 0.02  # after every block
ALONE_S = 5.0
CHUNK = 500


class Task(NamedTuple):
    wanted: ScanRange
    slow: bool
    times: int


class Outcome(NamedTuple):
    slow: bool
    rows: int
    took_s: float


def read(task: Task) -> Outcome:
    begun, rows = time.perf_counter(), 0
    for _ in range(task.times):
        for piece in read_range(task.wanted, Login()):
            rows += piece.high - piece.low + 1
            if task.slow:
                time.sleep(SLOW_S)
    return Outcome(task.slow, rows, time.perf_counter() - begun)


def read_all(tasks: list[Task], start: Any, results: Any, nice: int) -> None:
    """One process: its tasks begin together, as those of an executor."""
    os.nice(nice)
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

    def waited(self) -> str:
        """Since the last call."""
        waits, self.waits = self.waits, []
        cuts = [cut * 1000 for cut in statistics.quantiles(waits, n=100)]
        return f"p99 {cuts[98]:.1f} ms (p50 {cuts[49]:.1f}, {len(waits):,} publishes)"


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


def tasks_of(cluster: LocalCluster, stream: str, count: int, times: int) -> list[Task]:
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
        wanted = ScanRange(stream, plan.id, first, last, tried)
        found.append(Task(wanted, slow=number % 2 == 1, times=times))
    return found


def measure(cluster: LocalCluster, options: argparse.Namespace, case: tuple[int, int]) -> bool:
    replicas, count = case
    rows, size = options.rows, options.size
    stream, others = f"ROWS{replicas}", f"PUBS{replicas}"
    fill(cluster, stream, rows, size, replicas)
    fill(cluster, others, CHUNK, 128, replicas)
    tasks = tasks_of(cluster, stream, count, options.times)
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    readers = [
        context.Process(target=read_all, args=(tasks[k::PROCESSES], start, results, options.nice))
        for k in range(PROCESSES)
    ]
    for reader in readers:
        reader.start()
    settle(cluster)
    publisher = Publisher(cluster.nodes[0].client_port, others)
    publisher.start()
    time.sleep(ALONE_S)
    alone = publisher.waited()
    start.set()
    begun = time.perf_counter()
    outcomes = [one for _ in readers for one in results.get(timeout=600)]
    took_s = time.perf_counter() - begun
    during = publisher.waited()
    publisher.stopping.set()
    publisher.join()
    for reader in readers:
        reader.join()
    got = sum(one.rows for one in outcomes)
    exact = got >= rows * options.times and len(outcomes) == count
    print(
        f"R{replicas}, {count} tasks: {got:,} rows of {size} B, {'all' if exact else 'NOT ALL'}, "
        f"{got * size / took_s / 1e6:,.0f} MB/s"
    )
    for kind in (False, True):
        each = [one.took_s for one in outcomes if one.slow is kind]
        print(
            f"  {'slow' if kind else 'fast'}: {min(each):.2f} to {max(each):.2f} s, "
            f"{max(each) / min(each):.2f}x (bar 2x)"
        )
    print(f"  publisher: alone {alone}, during it {during} (bar 2x)", flush=True)
    return exact


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--times", type=int, default=5, help="each task reads its rows so often")
    parser.add_argument("--nice", type=int, default=0, help="of the readers")
    parser.add_argument("--cases", default="1,3", help="replicas")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="tasks-") as place,
        LocalCluster(Path(place), name="tasks") as cluster,
    ):
        cases = [(replicas, TASKS[replicas]) for replicas in map(int, options.cases.split(","))]
        good = [measure(cluster, options, case) for case in cases]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
