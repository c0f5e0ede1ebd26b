"""Runs the pipeline: three nodes, Spark with two executors, a killed node and a killed executor.

Owns: the processes, when what dies, the wait for the results, the verdict's exit code.
May not touch: how sums are made (pipeline.py) and judged (results.py)."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.local import LocalCluster
from examples.orders import pipeline
from examples.orders.orders import Expected, orders
from examples.orders.publisher import OrderPublisher, create_streams, leader_of
from examples.orders.results import Delivered, parquet_sums, picture

FINISH_WITHIN_S = 300.0
RESTARTS_MAX = 10
ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.orders", description=__doc__)
    parser.add_argument("--orders", type=int, default=30_000)
    parser.add_argument("--seconds", type=float, default=90.0, help="how long they are published")
    parser.add_argument("--minutes", type=int, default=45, help="of event time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="keep the data here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (given.directory or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        return run(given, folder)


def run(given: argparse.Namespace, folder: Path) -> int:
    planned = list(orders(given.orders, minutes=given.minutes, seed=given.seed))
    expected = Expected.of(planned)
    with LocalCluster(folder / "cluster", name="orders") as cluster:
        servers = ",".join(f"{node.host}:{node.client_port}" for node in cluster.nodes)
        asyncio.run(create_streams(cluster.urls))
        spark = _session(folder)
        try:
            queries = Queries(
                lambda: pipeline.start_sums(spark, servers, folder),
                lambda: pipeline.start_dead_letters(spark, servers, folder),
            )
            publisher = OrderPublisher(cluster.urls, planned, given.seconds)
            begin = time.monotonic()
            publisher.start()
            faults = _break(cluster, publisher, queries, begin)
            _wait(lambda: not publisher.is_alive(), "the orders were not published", queries.check)
            if publisher.failure is not None:
                raise publisher.failure
            print(f"{publisher.done} orders acknowledged, {publisher.resent} sent again")
            _wait(
                lambda: Delivered.read(servers).is_complete(expected),
                "the sums are not complete",
                queries.check,
            )
            queries.stop()
        finally:
            spark.stop()
        delivered = Delivered.read(servers)
    problems = delivered.problems(expected)
    if parquet_sums(folder) != expected.sums:
        problems.append("the parquet files have other sums")
    for problem in problems[:20]:
        print("WRONG:", problem)
    image = Path("orders.svg")
    image.write_text(picture(delivered.sums, publisher.acked, faults))
    total, dead = sum(delivered.sums.values()), delivered.bad.total()
    verdict = "WRONG" if problems else "exact"
    print(f"{verdict}: {len(delivered.sums)} sums, {total / 100:,.2f} in all, {dead} dead letters")
    print(f"the picture is in {image}")
    return 1 if problems else 0


def _session(folder: Path) -> Any:
    """Two executors in processes of their own, so that one can be killed."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    from pyspark.sql import SparkSession

    print("starting Spark with two executors")
    return (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .appName("orders")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder / "spark"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def _break(
    cluster: LocalCluster, publisher: OrderPublisher, queries: Queries, begin: float
) -> list[tuple[float, str]]:
    """Kill the leader of ORDERS after a third of the orders, an executor after two thirds."""
    faults: list[tuple[float, str]] = []
    total = publisher.planned

    def told(what: str) -> None:
        faults.append((time.monotonic() - begin, what))
        print(f"{publisher.done} of {total} orders: {what}")

    _wait(lambda: publisher.done >= total // 3, "no orders are published", queries.check)
    name = asyncio.run(leader_of(cluster.urls, "ORDERS"))
    node = next(node for node in cluster.nodes if node.name == name)
    node.kill()
    told(f"node {name} was killed")
    _wait(lambda: publisher.done >= total // 2, "a dead node stops all", queries.check)
    node.start()
    node.wait_healthy()
    told(f"node {name} is back")
    _wait(lambda: publisher.done >= 2 * total // 3, "no orders are published", queries.check)
    executors = _executors()
    assert executors, "Spark has no executor process"
    os.kill(executors[0], signal.SIGKILL)
    told("an executor was killed")
    return faults


def _executors() -> list[int]:
    """The executor processes that this process has started, directly or not."""
    found = []
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            parents[int(entry.name)] = int(words[1])
            if b"CoarseGrainedExecutorBackend" in command:
                found.append(int(entry.name))
    return sorted(pid for pid in found if _descends(pid, os.getpid(), parents))


def _descends(pid: int, from_pid: int, parents: dict[int, int]) -> bool:
    while pid and pid != from_pid:
        pid = parents.get(pid, 0)
    return pid == from_pid


class Queries:
    """The streaming queries. One that fails is started again and continues at its checkpoint."""

    def __init__(self, *starts: Callable[[], Any]) -> None:
        self._starts = starts
        self._running = [start() for start in starts]
        self._restarts = 0

    def check(self) -> None:
        for number, query in enumerate(self._running):
            failure = query.exception()
            if failure is None:
                continue
            self._restarts += 1
            if self._restarts > RESTARTS_MAX:
                raise failure
            print("a query failed and is started again:", str(failure).splitlines()[0][:150])
            self._running[number] = self._starts[number]()

    def stop(self) -> None:
        for query in self._running:
            query.stop()


def _wait(holds: Callable[[], bool], problem: str, check: Callable[[], None]) -> None:
    deadline = time.monotonic() + FINISH_WITHIN_S
    while not holds():
        check()
        if time.monotonic() > deadline:
            raise TimeoutError(problem)
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
