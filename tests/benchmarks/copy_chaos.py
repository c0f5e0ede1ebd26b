"""A mirror and a source in another cluster stay exact while leaders and the link between die:
`python -m tests.benchmarks.copy_chaos [--count 1000000] [--rounds 10]`.

Two clusters of three. Messages are published into the origin, an equal share in each round; in the
middle of it the leader of the origin and the leader of a copy are killed and started again, and
every connection between the clusters is cut for a second. In the end the mirror equals the origin
by a digest over sequence, time, subject, headers and payload, and the sourced stream by one over
subject and payload; all that was acknowledged is there."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from broker.local import LocalCluster, LocalNode, free_ports
from broker.scan.client import Login, Planner, ScanRange, endpoints_of, parse_endpoint, read_range
from broker.store.block.codec import Block
from tests.benchmarks.plain_client import PlainClient

ORIGIN, MIRROR, SOURCED = "ORIGIN", "MIRROR", "SOURCED"
WINDOW = 2000
SIZE = 100
WITHIN_S = 300.0


class Outcome(NamedTuple):
    acked: int
    stored: int
    digests: tuple[bytes, bytes]  # of the origin and the mirror
    bodies: tuple[bytes, bytes]  # of the origin and the sourced stream
    took_s: float


class Link:
    """Forwards connections to the origin cluster; can be cut."""

    def __init__(self, targets: list[int]) -> None:
        self.ports = free_ports(len(targets))
        self._targets = targets
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._down = False
        self._open = 0

    async def start(self) -> None:
        for port, target in zip(self.ports, self._targets, strict=True):

            async def accept(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int = target
            ) -> None:
                await self._forward(reader, writer, target)

            self._servers.append(await asyncio.start_server(accept, "127.0.0.1", port))

    async def cut(self, seconds: float) -> None:
        self._down = True
        self._abort()
        await asyncio.sleep(seconds)
        self._down = False

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def stop(self) -> None:
        self._down = True
        self._abort()
        for server in self._servers:
            server.close()
            await server.wait_closed()
        while self._open:
            await asyncio.sleep(0.01)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int
    ) -> None:
        self._open += 1
        try:
            if self._down:
                return
            there, back = await asyncio.open_connection("127.0.0.1", target)
            self._writers |= {writer, back}
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pump(reader, back))
                tasks.create_task(_pump(there, writer))
            back.close()
        except OSError:
            pass  # the node is down: the reader tries the next one
        finally:
            writer.close()
            self._open -= 1


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
    writer.close()


class Publisher:
    """Publishes until so many messages are acknowledged."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._sent = 0
        self._allowed = 0
        self._more = asyncio.Event()
        self.acked = 0

    def allow(self, count: int) -> None:
        """Go on until so many are acknowledged."""
        self._allowed = count
        self._more.set()

    async def run(self, count: int) -> None:
        attempt = 0
        while self.acked < count:
            attempt += 1
            node = self._cluster.nodes[attempt % self._cluster.size]
            try:
                client = await PlainClient.open(node.client_port, "")
            except OSError:
                await asyncio.sleep(0.2)
                continue
            try:
                while self.acked < count and not client.closed:
                    if self.acked >= self._allowed:
                        self._more.clear()
                        await self._more.wait()
                    if not await self._window(client, min(WINDOW, self._allowed - self.acked)):
                        break
            finally:
                await client.close()

    async def _window(self, client: PlainClient, size: int) -> bool:
        """False if not all were answered: another node may know more."""
        answered, good, done = 0, 0, asyncio.Event()

        def answer(_subject: bytes, payload: bytes) -> None:
            nonlocal answered, good
            answered += 1
            good += b'"seq"' in payload
            if answered == size:
                done.set()

        client.on_answer = answer
        numbers = range(self._sent, self._sent + size)
        self._sent += size
        head = b"%b.p %d\r\n" % (client.inbox, SIZE)
        lines = (b"PUB origin.%d %b%0*d\r\n" % (i % 50, head, SIZE, i) for i in numbers)
        await client.flood(b"".join(lines))
        try:
            async with asyncio.timeout(5):
                await done.wait()
        except TimeoutError:
            return False
        finally:
            self.acked += good
        return good == size


async def ask(cluster: LocalCluster, request: str, body: object = None) -> dict[str, Any]:
    """From whichever node answers."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            for node in cluster.nodes:
                try:
                    client = await PlainClient.open(node.client_port, "")
                    async with asyncio.timeout(5):
                        answer = await client.api(request, body)
                    await client.close()
                except (OSError, TimeoutError, json.JSONDecodeError):
                    continue
                if answer.get("error", {}).get("code") != 503:
                    return answer
            await asyncio.sleep(0.2)


async def leader(cluster: LocalCluster, stream: str) -> LocalNode:
    async with asyncio.timeout(WITHIN_S):
        while True:
            info = await ask(cluster, f"STREAM.INFO.{stream}")
            name = info.get("cluster", {}).get("leader")
            found = [node for node in cluster.nodes if node.name == name]
            if found:
                return found[0]
            await asyncio.sleep(0.1)


async def round_of_faults(number: int, far: LocalCluster, near: LocalCluster, link: Link) -> None:
    victims = [await leader(far, ORIGIN), await leader(near, (MIRROR, SOURCED)[number % 2])]
    for node in victims:
        node.kill()
    await link.cut(1.0)
    for node in victims:
        node.start()
        await asyncio.to_thread(node.wait_healthy)


def digests(cluster: LocalCluster, stream: str) -> tuple[bytes, bytes, int]:
    """Of everything, of subjects and payloads, and the number of messages."""
    servers = ",".join(cluster.urls)
    planner = Planner(endpoints_of(servers), Login())
    plan = planner.plan(stream)
    planner.close()
    endpoints = tuple(parse_endpoint(replica.address) for replica in plan.replicas)
    wanted = ScanRange(stream, plan.id, plan.first_seq, plan.last_seq, endpoints)
    whole, bodies, count = hashlib.sha256(), hashlib.sha256(), 0
    for piece in read_range(wanted, Login()):
        block = Block(bytes(piece.columns.raw))
        for row in range(block.rows):
            if piece.low <= block.seq(row) <= piece.high:
                subject, data = block.subject(row), block.data(row)
                place = b"%d %d %b " % (block.seq(row), block.time(row), block.headers(row))
                whole.update(place + subject + b" " + data)
                bodies.update(subject + b" " + data + b"\n")
                count += 1
    return whole.digest(), bodies.digest(), count


async def equal_ends(far: LocalCluster, near: LocalCluster) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            wanted = (await ask(far, f"STREAM.INFO.{ORIGIN}"))["state"]["last_seq"]
            copies = [await ask(near, f"STREAM.INFO.{name}") for name in (MIRROR, SOURCED)]
            if all(copy["state"]["last_seq"] == wanted for copy in copies):
                return
            await asyncio.sleep(0.2)


async def run(place: Path, *, count: int, rounds: int) -> Outcome:
    began = time.monotonic()
    with LocalCluster(place / "far", name="far") as far:
        link = Link([node.client_port for node in far.nodes])
        await link.start()
        urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in link.ports)
        remote = f"remotes {{ far {{ urls: [{urls}] }} }}"
        with LocalCluster(place / "near", name="near", jetstream=remote) as near:
            config = {"name": ORIGIN, "subjects": ["origin.*"], "num_replicas": 3}
            await ask(far, f"STREAM.CREATE.{ORIGIN}", config)
            origin = {"name": ORIGIN, "external": {"api": "$JS.far.API", "deliver": ""}}
            for name, more in ((MIRROR, {"mirror": origin}), (SOURCED, {"sources": [origin]})):
                config = {"name": name, "num_replicas": 3} | more
                await ask(near, f"STREAM.CREATE.{name}", config)
            publisher = Publisher(far)
            publishing = asyncio.create_task(publisher.run(count))
            for number in range(rounds):
                publisher.allow(count * (number + 1) // rounds)
                while publisher.acked < count * (number + 0.5) / rounds:
                    await asyncio.sleep(0.05)
                await round_of_faults(number, far, near, link)
                sys.stderr.write(f"round {number + 1}: {publisher.acked:,} acknowledged\n")
            await publishing
            await equal_ends(far, near)
            first = await asyncio.to_thread(digests, far, ORIGIN)
            second = await asyncio.to_thread(digests, near, MIRROR)
            third = await asyncio.to_thread(digests, near, SOURCED)
            await link.stop()
    return Outcome(
        publisher.acked, first[2], (first[0], second[0]), (first[1], third[1]),
        time.monotonic() - began,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(Path(folder), count=options.count, rounds=options.rounds))
    equal = found.digests[0] == found.digests[1] and found.bodies[0] == found.bodies[1]
    sys.stdout.write(
        f"{found.acked:,} acknowledged, {found.stored:,} stored, {options.rounds} rounds, "
        f"{found.took_s:.0f} s: copies are {'equal' if equal else 'DIFFERENT'}\n"
        f"origin {found.digests[0].hex()}\nmirror {found.digests[1].hex()}\n"
    )
    sys.exit(0 if equal and found.stored >= found.acked else 1)


if __name__ == "__main__":
    main()
