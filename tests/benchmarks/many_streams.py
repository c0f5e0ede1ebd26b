"""Thousands of streams: what a create costs as their number grows, and what they cost at rest.

    python tests/benchmarks/many_streams.py [--streams 3000] [--consumers 3] [--replicas 3]
        [--under-way 64] [--nodes 3] [--servers ours nats-server] [--list] [--restart]
        [--restart-all]

Streams with durable pull consumers are created over bare sockets, one connection per node, with
`--under-way` requests waiting at a time. After each step (a tenth of the streams) a line says how
many creates per second there were, and how many CPU seconds of all nodes a thousand of them took:
if the lines are alike, the cost does not grow. At the end: memory of all nodes, CPU of the slowest
node at rest, the time from SIGKILL of a node, or of all, until it is healthy. `--profile DIRECTORY`
samples the first node with py-spy during the last step."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from plain_client import PlainClient
from raft_node import cpu_of

from broker.local import LocalCluster, LocalNode, our_command

REST_S = 10.0
RESTART_WITHIN_S = 300.0
STEPS = 10


class Load:
    """Creates with a number of requests under way, and what became of them."""

    def __init__(self, clients: list[PlainClient], options: argparse.Namespace) -> None:
        self._clients = clients
        self._options = options
        self.errors: Counter[str] = Counter()
        self.latencies: list[float] = []

    async def _api(self, number: int, subject: str, body: object) -> None:
        began = time.perf_counter()
        try:
            answer = await self._clients[number % len(self._clients)].api(subject, body)
        except (TimeoutError, ConnectionError) as error:
            self.errors[type(error).__name__] += 1
            return
        self.latencies.append(time.perf_counter() - began)
        if "error" in answer:
            error = answer["error"]
            self.errors[f"{error.get('err_code')} {error.get('description')}"] += 1

    async def stream(self, number: int) -> None:
        name = f"S{number}"
        body = {
            "name": name,
            "subjects": [f"{name}.>"],
            "num_replicas": self._options.replicas,
            "storage": "file",
            "retention": "limits",
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
        }
        await self._api(number, f"STREAM.CREATE.{name}", body)
        for consumer in range(self._options.consumers):
            config = {"durable_name": f"C{consumer}", "ack_policy": "explicit"}
            subject = f"CONSUMER.CREATE.{name}.C{consumer}"
            await self._api(number, subject, {"stream_name": name, "config": config})

    async def run(self, numbers: range, create: Callable[[int], Awaitable[None]]) -> None:
        left = iter(numbers)

        async def work() -> None:
            for number in left:
                await create(number)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(self._options.under_way, len(numbers))):
                tasks.create_task(work())


def memory_mb(nodes: list[LocalNode]) -> list[int]:
    found = []
    for node in nodes:
        lines = Path(f"/proc/{node.pid}/status").read_text().splitlines()
        found += [int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS")]
    return found


def show(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return round(1000 * ordered[min(int(share * len(ordered)), len(ordered) - 1)], 1)


async def create_all(
    server: str, cluster: LocalCluster, load: Load, options: argparse.Namespace
) -> None:
    step = max(options.streams // STEPS, 1)
    profiler: subprocess.Popen[bytes] | None = None
    began = time.perf_counter()
    for first in range(0, options.streams, step):
        if options.profile and first + step >= options.streams:
            output = Path(options.profile) / f"{server}-{options.streams}.txt"
            command = ["py-spy", "record", "--format", "raw", "--duration", "20", "--rate", "200",
                       "--nonblocking", "--output", str(output),
                       "--pid", str(cluster.nodes[0].pid)]  # fmt: skip
            profiler = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        load.latencies.clear()
        cpu, at = cpu_of([node.process for node in cluster.nodes]), time.perf_counter()
        numbers = range(first, min(first + step, options.streams))
        await load.run(numbers, load.stream)
        took = time.perf_counter() - at
        cpu = cpu_of([node.process for node in cluster.nodes]) - cpu
        show(
            server=server,
            streams=numbers.stop,
            seconds=round(took, 2),
            streams_per_s=round(len(numbers) / took),
            cpu_s_per_1000=round(1000 * cpu / len(numbers), 2),
            p50_ms=percentile(load.latencies, 0.5),
            p99_ms=percentile(load.latencies, 0.99),
            errors=sum(load.errors.values()),
        )
    show(
        server=server,
        all_seconds=round(time.perf_counter() - began, 2),
        errors=dict(load.errors),
        memory_mb=memory_mb(cluster.nodes),
    )
    if profiler is not None:
        await asyncio.to_thread(profiler.wait)


async def rest(server: str, cluster: LocalCluster, seconds: float) -> None:
    await asyncio.sleep(5)  # until the last groups sleep and the last flush is done
    before = [cpu_of([node.process]) for node in cluster.nodes]
    await asyncio.sleep(seconds)
    shares = [
        round(100 * (cpu_of([node.process]) - was) / seconds, 1)
        for node, was in zip(cluster.nodes, before, strict=True)
    ]
    show(server=server, idle_percent_of_a_core=shares, memory_mb=memory_mb(cluster.nodes))


async def list_all(server: str, client: PlainClient, streams: int) -> None:
    for kind in ("NAMES", "LIST"):
        began, seen, worst = time.perf_counter(), 0, 0.0
        while seen < streams:
            at = time.perf_counter()
            answer = await client.api(f"STREAM.{kind}", {"offset": seen})
            worst = max(worst, time.perf_counter() - at)
            page = answer.get("streams") or []
            if not page:
                break
            seen += len(page)
        took = round(time.perf_counter() - began, 2)
        show(server=server, request=kind, seen=seen, seconds=took, worst_page_s=round(worst, 3))


def restart(server: str, cluster: LocalCluster) -> None:
    node = cluster.nodes[-1]
    node.kill()
    began = time.perf_counter()
    node.start()
    node.wait_healthy(timeout_s=RESTART_WITHIN_S)
    took = time.perf_counter() - began
    cpu = cpu_of([node.process])
    show(server=server, killed_node_healthy_s=round(took, 2), its_cpu_s=round(cpu, 2))


async def restart_all(server: str, cluster: LocalCluster, streams: int) -> None:
    """A power cut: then every stream must be there, and take messages."""
    for node in cluster.nodes:
        node.kill()
    began = time.perf_counter()
    for node in cluster.nodes:
        node.start()
    for node in cluster.nodes:
        await asyncio.to_thread(node.wait_healthy, timeout_s=RESTART_WITHIN_S)
    healthy = time.perf_counter() - began
    client = await PlainClient.open(cluster.nodes[0].client_port, "")
    total = (await client.api("STREAM.NAMES", {"offset": 0})).get("total", 0)
    lost = 0
    for number in range(0, streams, max(streams // 100, 1)):
        answer = await client.request(f"S{number}.restart".encode(), b"x")
        lost += b'"seq"' not in answer
    took = time.perf_counter() - began
    await client.close()
    show(
        server=server,
        all_healthy_s=round(healthy, 2),
        published_to_a_hundred_s=round(took, 2),
        streams=total,
        refused=lost,
    )


async def run(server: str, cluster: LocalCluster, options: argparse.Namespace) -> None:
    clients = [await PlainClient.open(node.client_port, "") for node in cluster.nodes]
    await create_all(server, cluster, Load(clients, options), options)
    await rest(server, cluster, options.rest)
    if options.list:
        await list_all(server, clients[0], options.streams)
    if options.restart:
        await asyncio.to_thread(restart, server, cluster)
        await rest(server, cluster, options.rest)
    for client in clients:
        await client.close()
    if options.restart_all:
        await restart_all(server, cluster, options.streams)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=3000)
    parser.add_argument("--consumers", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--under-way", type=int, default=64)
    parser.add_argument("--servers", nargs="+", default=["ours"])
    parser.add_argument("--rest", type=float, default=REST_S)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--restart", action="store_true")
    parser.add_argument("--restart-all", action="store_true")
    parser.add_argument("--profile")
    options = parser.parse_args()
    for server in options.servers:
        command = our_command() if server == "ours" else [server]
        with (
            tempfile.TemporaryDirectory(dir=".") as directory,
            LocalCluster(
                Path(directory).absolute(), size=options.nodes, name="many", command=command
            ) as cluster,
        ):
            uvloop.run(run(server, cluster, options))


if __name__ == "__main__":
    main()
