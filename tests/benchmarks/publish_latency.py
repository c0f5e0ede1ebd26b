"""Clients that publish one message at a time: latency, throughput and the CPU of the node.

    python tests/benchmarks/publish_latency.py [--clients 1 10 100] [--seconds 3] [--replicas 1]

Each client waits for the ack of its message before it sends the next one (128 bytes, fsync before
the ack). The clients are bare sockets in this process, so that they cost little beside the node."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import cast

import nats
import uvloop
from nats.js.api import StreamConfig
from raft_node import cpu_of

from broker.local import LocalCluster

DATA = b"x" * 128
# As client libraries connect: without +OK for every publish, one subscription for all answers.
OPTIONS = '{"verbose":false,"pedantic":false,"protocol":1,"headers":true,"no_responders":true}'


class Publisher(asyncio.Protocol):
    def __init__(self, number: int, latencies: list[float]) -> None:
        inbox = f"_INBOX.{number}"
        self._publish = f"PUB one {inbox}.1 {len(DATA)}\r\n".encode() + DATA + b"\r\n"
        self._hello = f"CONNECT {OPTIONS}\r\nSUB {inbox}.* 1\r\n".encode()
        self._latencies = latencies
        self._sent = 0.0
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self.stopping = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._hello)

    def send(self) -> None:
        assert self._transport is not None
        self._sent = time.perf_counter()
        self._transport.write(self._publish)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"PING" in data:
            assert self._transport is not None
            self._transport.write(b"PONG\r\n")
        if b'"seq"' in self._received and self._received.endswith(b"}\r\n"):
            self._received = b""
            self._latencies.append(time.perf_counter() - self._sent)
            if not self.stopping:
                self.send()


async def measure(cluster: LocalCluster, clients: int, seconds: float) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    publishers: list[Publisher] = []
    for number in range(clients):
        port = cluster.nodes[number % len(cluster.nodes)].client_port
        _, publisher = await loop.create_connection(
            lambda number=number: Publisher(number, latencies), "127.0.0.1", port
        )
        publishers.append(publisher)
    await asyncio.sleep(0.2)
    before = cpu_of([node.process for node in cluster.nodes])
    for publisher in publishers:
        publisher.send()
    await asyncio.sleep(seconds)
    for publisher in publishers:
        publisher.stopping = True
    cpu = cpu_of([node.process for node in cluster.nodes]) - before
    latencies.sort()
    count = len(latencies)
    return {
        "clients": clients,
        "per second": round(count / seconds),
        "p50 ms": round(1000 * latencies[count // 2], 3),
        "p95 ms": round(1000 * latencies[count * 95 // 100], 3),
        "cpu us": round(1e6 * cpu / count, 1),
    }


async def run(cluster: LocalCluster, options: argparse.Namespace) -> None:
    client = await nats.connect(cluster.nodes[0].url)
    await client.jetstream().add_stream(
        StreamConfig(name="ONE", subjects=["one"], num_replicas=options.replicas)
    )
    for clients in options.clients:
        print(json.dumps(await measure(cluster, clients, options.seconds)))
    await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--replicas", type=int, default=1)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=".") as directory,
        LocalCluster(Path(directory), size=options.replicas, name="bench") as cluster,
    ):
        uvloop.run(run(cluster, options))


if __name__ == "__main__":
    main()
