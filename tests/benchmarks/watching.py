"""What it costs to watch a node with many streams: /metrics, `stream ls`, `top`, the console.

    python -m tests.benchmarks.watching [--streams 1000] [--consumers 5] [--nodes 1]
        [--scrapes 10] [--seconds 20] [--only metrics ls top console] [--steps]

One line of JSON per part. `metrics`: time and CPU of the node per scrape, and the slowest PING of a
client of that node meanwhile, beside the slowest without a scrape. `top` and `console` (each of its
pages, in a headless browser): CPU of all nodes above that at rest, in percent of a core. With
`--steps` the nodes run under long_steps.py, which tells every step of the event loop that took more
than 8 ms of CPU; speeds are then lower."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from broker.local import LocalCluster, LocalNode, our_command

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))

from many_streams import Load, show  # noqa: E402
from plain_client import PlainClient  # noqa: E402
from raft_node import cpu_of  # noqa: E402

from tests.monitor.console.test_page import browsing  # noqa: E402

PARTS = ("metrics", "ls", "top", "console")
PAGES = ("overview", "streams", "stream/S0", "connections", "health")
SETTLE_S = 5.0
BUSY_STREAMS = 20  # get messages while somebody watches
STEPS = "steps.jsonl"


def cpu(cluster: LocalCluster) -> float:
    return cpu_of([node.process for node in cluster.nodes])


async def create(cluster: LocalCluster, options: argparse.Namespace) -> None:
    clients = [await PlainClient.open(node.client_port, "") for node in cluster.nodes]
    load = Load(clients, options)
    began = time.perf_counter()
    await load.run(range(options.streams), load.stream)

    async def fill(number: int) -> None:
        await clients[number % len(clients)].request(f"S{number}.a".encode(), b"x")

    await load.run(range(options.streams), fill)
    show(part="created", seconds=round(time.perf_counter() - began, 1), errors=dict(load.errors))
    for client in clients:
        await client.close()


async def output(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    found, _ = await process.communicate()
    assert process.returncode == 0, command
    return found.decode()


async def slowest_ping(client: PlainClient, until: asyncio.Event) -> float:
    """Milliseconds, of PINGs one after the other."""
    worst = 0.0
    ponged = asyncio.Event()
    client.on_pong = ponged.set
    while not until.is_set():
        ponged.clear()
        at = time.perf_counter()
        client.send(b"PING\r\n")
        await ponged.wait()
        worst = max(worst, time.perf_counter() - at)
        await asyncio.sleep(0.0005)
    return 1000 * worst


async def metrics(node: LocalNode, scrapes: int) -> None:
    client = await PlainClient.open(node.client_port, "")
    url = f"http://127.0.0.1:{node.http_port}/metrics"
    scrape = ("curl", "-s", "-o", os.devnull, "-w", "%{time_total} %{size_download}", url)
    await output(*scrape)  # the first one imports the library

    async def beside(work: list[tuple[str, ...]], rest_s: float) -> tuple[list[str], float]:
        done = asyncio.Event()
        pings = asyncio.create_task(slowest_ping(client, done))
        found = []
        for command in work:
            found.append(await output(*command))
            await asyncio.sleep(0.2)
        await asyncio.sleep(rest_s)
        done.set()
        return found, await pings

    before = cpu_of([node.process])
    _, quiet = await beside([], 2.0)
    idle = (cpu_of([node.process]) - before) / 2.0  # with its PINGs
    before, at = cpu_of([node.process]), time.perf_counter()
    answers, worst = await beside([scrape] * scrapes, 0.0)
    spent = cpu_of([node.process]) - before - idle * (time.perf_counter() - at)
    times = sorted(float(one.split()[0]) for one in answers)
    show(
        part="metrics",
        node=node.name,
        ms=[round(1000 * one) for one in times],
        cpu_ms=round(1000 * spent / scrapes),
        size=int(answers[-1].split()[1]),
        slowest_ping_ms=round(worst, 1),
        slowest_ping_without_ms=round(quiet, 1),
    )
    await client.close()


async def stream_ls(cluster: LocalCluster) -> None:
    node = cluster.nodes[0]
    ls = (sys.executable, "-m", "broker", "stream", "ls", "--server", node.url)
    for _ in range(3):
        before, at = cpu(cluster), time.perf_counter()
        found = await output(*ls)
        took = time.perf_counter() - at
        spent = cpu(cluster) - before
        show(part="stream ls", seconds=round(took, 2), server_cpu_s=round(spent, 2),
             lines=len(found.splitlines()))  # fmt: skip


async def publish(client: PlainClient) -> None:
    """Some streams are in use."""
    while True:
        for number in range(BUSY_STREAMS):
            client.send(f"PUB S{number}.a 1\r\nx\r\n".encode())
        await asyncio.sleep(0.5)


async def spent(cluster: LocalCluster, seconds: float) -> float:
    """CPU of all nodes, in percent of a core."""
    before, at = cpu(cluster), time.perf_counter()
    await asyncio.sleep(seconds)
    return 100 * (cpu(cluster) - before) / (time.perf_counter() - at)


async def top(cluster: LocalCluster, seconds: float, idle: float) -> None:
    server = cluster.nodes[0].url
    command = (sys.executable, "-m", "broker", "top", "--server", server)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    await asyncio.sleep(1)  # connected
    used = await spent(cluster, seconds)
    process.terminate()
    await process.wait()
    show(part="top", percent=round(used - idle, 2), idle_percent=round(idle, 2))


async def console(cluster: LocalCluster, seconds: float, idle: float, place: Path) -> None:
    url = f"http://127.0.0.1:{cluster.nodes[0].http_port}/"
    async with browsing(url, place) as browser:
        for page in PAGES:
            await browser.evaluate(f"location.hash = '#/{page}'")
            await browser.shows([])
            await asyncio.sleep(2)
            used = await spent(cluster, seconds)
            show(part="console", page=page, percent=round(used - idle, 2))


async def watch(cluster: LocalCluster, options: argparse.Namespace, place: Path) -> None:
    await create(cluster, options)
    await asyncio.sleep(SETTLE_S)
    (place / STEPS).write_text("")  # those of the creates do not count
    if "metrics" in options.only:
        for node in cluster.nodes:
            await metrics(node, options.scrapes)
    if "ls" in options.only:
        await stream_ls(cluster)
    if not {"top", "console"} & set(options.only):
        return
    client = await PlainClient.open(cluster.nodes[0].client_port, "")
    publishing = asyncio.create_task(publish(client))
    await asyncio.sleep(2)
    idle = await spent(cluster, options.seconds)
    if "top" in options.only:
        await top(cluster, options.seconds, idle)
    if "console" in options.only:
        await console(cluster, options.seconds, idle, place)
    publishing.cancel()
    with suppress(asyncio.CancelledError):
        await publishing
    await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--consumers", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--scrapes", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--steps", action="store_true")
    options = parser.parse_args()
    options.replicas, options.under_way = min(options.nodes, 3), 64
    command = [sys.executable, str(FOLDER / "long_steps.py")] if options.steps else our_command()
    with tempfile.TemporaryDirectory(dir=".") as directory:
        place = Path(directory).absolute()
        os.environ["JETRAFT_STEPS"] = str(place / STEPS)
        with LocalCluster(place, size=options.nodes, name="watched", command=command) as cluster:
            asyncio.run(watch(cluster, options, place))
            for line in (place / STEPS).read_text().splitlines():
                show(part="step", **json.loads(line))


if __name__ == "__main__":
    main()
