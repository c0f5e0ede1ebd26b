"""How fast mirrors and sources catch up, ours and nats-server's in turn:
`python -m tests.benchmarks.mirrors [--count N] [--rounds N] [--size BYTES] [--only TEXT]`.

The origin is filled first. The clock runs from the request that creates the copy until its leader
shows all messages. Between two nats-server clusters the link is a leaf node connection: without
gateways it has no other. `CPU` is that of all servers that take part, per million messages."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from broker.local import LocalCluster, free_ports, our_command
from tests.benchmarks.plain_client import PlainClient
from tests.support.clusters import nats_server

WITHIN_S = 120.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SHARE = 500  # messages per write


class Row(NamedTuple):
    """One way from an origin to a copy."""

    name: str
    here: LocalCluster  # has the copy
    there: LocalCluster  # has the origin
    api: str  # of the origin, "" in the same cluster


def cpu_s(*clusters: LocalCluster) -> float:
    total = 0
    for pid in {node.pid for cluster in clusters for node in cluster.nodes}:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S


async def messages(client: PlainClient, stream: str) -> int:
    answer = await client.api(f"STREAM.INFO.{stream}")
    return int(answer.get("state", {}).get("messages", 0))


async def wait_for(client: PlainClient, stream: str, count: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while await messages(client, stream) < count:
            await asyncio.sleep(0.01)


async def ask(client: PlainClient, request: str, body: object = None) -> None:
    answer = await client.api(request, body)
    if "error" in answer:
        raise RuntimeError(f"{request}: {answer['error']}")


async def fill(cluster: LocalCluster, stream: str, count: int, size: int) -> None:
    client = await PlainClient.open(cluster.nodes[0].client_port, "")
    config = {"name": stream, "subjects": [f"{stream}.*"], "num_replicas": cluster.size}
    await ask(client, f"STREAM.CREATE.{stream}", config)
    for done in range(0, count, SHARE):
        share = range(done, min(done + SHARE, count))
        lines = (
            b"PUB %b.%d %d\r\n%b\r\n" % (stream.encode(), i % 100, size, b"x" * size) for i in share
        )
        await client.flood(b"".join(lines))
        if done % (40 * SHARE) == 0:
            await wait_for(client, stream, max(done - 20 * SHARE, 0))
    await wait_for(client, stream, count)
    await client.close()


async def copy(row: Row, stream: str, kind: str, count: int) -> tuple[float, float]:
    """Messages per second, and CPU seconds per million."""
    client = await PlainClient.open(row.here.nodes[0].client_port, "")
    origin: dict[str, object] = {"name": stream}
    if row.api:
        origin["external"] = {"api": row.api, "deliver": ""}
    config = {"name": "COPY", "num_replicas": row.here.size}
    config[kind] = origin if kind == "mirror" else [origin]
    before, began = cpu_s(row.here, row.there), time.perf_counter()
    await ask(client, "STREAM.CREATE.COPY", config)
    await wait_for(client, "COPY", count)
    took = time.perf_counter() - began
    used = cpu_s(row.here, row.there) - before
    await ask(client, "STREAM.DELETE.COPY")
    await client.close()
    return count / took, used / count * 1e6


@contextmanager
def pair(
    place: Path, command: Sequence[str], *, leafs: bool
) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    """An origin and a cluster that can reach it as $JS.far.API."""
    more = ""
    [port] = free_ports(1)
    if leafs:
        more = f'leafnodes {{ listen: "127.0.0.1:{port}" }}'
    domain = "domain: far" if leafs else ""
    size = 1 if leafs else 3
    far = LocalCluster(
        place / "far", size, "far", command=command, jetstream=domain, more=more
    )  # fmt: skip
    with far:
        urls = ", ".join(f'"{url}"' for url in far.urls)
        remote = f"remotes {{ far {{ urls: [{urls}] }} }}"
        more = f'leafnodes {{ remotes: [ {{ url: "nats://127.0.0.1:{port}" }} ] }}'
        near = LocalCluster(
            place / "near", far.size, "near", command=command,
            jetstream="domain: near" if leafs else remote, more=more if leafs else "",
        )  # fmt: skip
        with near:
            yield near, far


def _remote(origin: LocalCluster) -> str:
    return f'remotes {{ far {{ urls: ["{origin.nodes[0].url}"], domain: far }} }}'


def report(row: str, figures: list[tuple[float, float]]) -> None:
    rates = sorted(rate for rate, _ in figures)
    cpu = median(used for _, used in figures)
    sys.stdout.write(
        f"{row:<52}{median(rates):>10,.0f}/s  ({rates[0]:,.0f} to {rates[-1]:,.0f})"
        f"  CPU {cpu:.1f} s/million\n"
    )
    sys.stdout.flush()


async def measure(rows: list[Row], options: argparse.Namespace) -> None:
    figures: dict[str, list[tuple[float, float]]] = {}
    filled: set[int] = set()
    for row in rows:
        if id(row.there) not in filled:
            await fill(row.there, "ORIGIN", options.count, options.size)
            filled.add(id(row.there))
    for _ in range(options.rounds):
        for row in rows:
            for kind in ("mirror", "sources"):
                got = await copy(row, "ORIGIN", kind, options.count)
                figures.setdefault(f"{row.name}, {kind}", []).append(got)
    for name in sorted(figures):
        report(name, figures[name])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="inside, between or origin")
    options = parser.parse_args()
    ours, theirs = our_command(), nats_server()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if options.only in ("", "inside"):
            with (
                LocalCluster(place / "a", 3, "ours", command=ours) as mine,
                LocalCluster(place / "b", 3, "theirs", command=theirs) as peer,
            ):
                rows = [
                    Row("inside a cluster of three: jetraft", mine, mine, ""),
                    Row("inside a cluster of three: nats-server", peer, peer, ""),
                ]
                asyncio.run(measure(rows, options))
        if options.only in ("", "between"):
            with (
                pair(place / "c", ours, leafs=False) as mine,
                pair(place / "d", theirs, leafs=True) as peer,
            ):
                rows = [
                    Row("between clusters of three: jetraft", *mine, "$JS.far.API"),
                    Row("between single servers: nats-server", *peer, "$JS.far.API"),
                ]
                asyncio.run(measure(rows, options))
        if options.only in ("", "origin"):
            with (
                pair(place / "e", theirs, leafs=True) as peer,
                LocalCluster(
                    place / "f", 1, "ours", command=ours, jetstream=_remote(peer[1])
                ) as mine,
            ):  # fmt: skip
                rows = [
                    Row("origin nats-server: copy on jetraft", mine, peer[1], "$JS.far.API"),
                    Row("origin nats-server: copy on nats-server", *peer, "$JS.far.API"),
                ]
                asyncio.run(measure(rows, options))


if __name__ == "__main__":
    main()
