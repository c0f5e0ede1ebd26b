"""Scenarios of clients that wait for each answer before they go on: most programs publish so.

Owns: the load of many such clients from one thread, and the figures of it.
May not touch: which servers run it, how often, what is printed.
Method: one socket per client, all of them in one epoll; a client sends its next request when the
answer to the last one has arrived. Latency is that of all clients together."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from broker.bench.load import PUB_ACK, Load, LoadClient, resident_bytes
from broker.bench.scenarios import (
    FILL_SUBJECT,
    RATE,
    WINDOW,
    Figures,
    Run,
    connect,
    create_consumer,
    create_stream,
    measured,
    settle,
)
from broker.local import LocalCluster

MEDIAN, P99 = "median ms", "p99 ms"
MEMORY = "memory MB"
SHARE = "share of the disk"
SECONDS = 3.0
ANSWER_WITHIN_S = 30.0
SYNCED_BYTES = 1 << 20  # of a trial of the disk, written between two syncs


@dataclass(slots=True)
class WaitingClient:
    """One connection with one request under way."""

    client: LoadClient
    request: memoryview
    sent_at: float = 0.0
    rest: bytes = b""


@dataclass(slots=True)
class WaitingLoad:
    """Publishes of clients that each wait for the ack."""

    clients: Sequence[WaitingClient]
    seconds: float = SECONDS
    latencies: list[float] = field(default_factory=list)

    def run(self) -> Load:
        clock, by_file = time.perf_counter, {c.client.socket.fileno(): c for c in self.clients}
        ready = select.epoll()
        for number in by_file:
            ready.register(number, select.EPOLLIN)
        started = clock()
        end = started + self.seconds
        for each in self.clients:
            each.sent_at = clock()
            each.client.socket.sendall(each.request)
        waiting, latencies = len(by_file), self.latencies
        while waiting:
            events = ready.poll(ANSWER_WITHIN_S)
            if not events:
                raise TimeoutError(f"{waiting} clients have had no answer for {ANSWER_WITHIN_S} s")
            for number, _ in events:
                each = by_file[number]
                each.rest += each.client.socket.recv(1 << 16)
                if PUB_ACK not in each.rest or b"}\r\n" not in each.rest:
                    continue
                each.rest, now = b"", clock()
                latencies.append(now - each.sent_at)
                if now < end:
                    each.sent_at = now
                    each.client.socket.sendall(each.request)
                else:
                    waiting -= 1
        ready.close()
        return Load(len(latencies), clock() - started)


@contextmanager
def _waiting_clients(cluster: LocalCluster, count: int, streams: int) -> Iterator[WaitingLoad]:
    with ExitStack() as opened:
        clients = []
        for number in range(count):
            node = cluster.nodes[number % len(cluster.nodes)]
            client = opened.enter_context(closing(LoadClient(node.client_port)))
            inbox = b"_INBOX.waiting.%06d" % number
            client.send(b"SUB %b.* 1\r\n" % inbox)
            client.flush()
            subject, data = b"W%d.a" % (number % streams), b"x" * 128
            line = b"PUB %b %b.1 %d\r\n%b\r\n" % (subject, inbox, len(data), data)
            clients.append(WaitingClient(client, memoryview(line)))
        yield WaitingLoad(clients)


def publish_waiting(*, clients: int, replicas: int = 1, streams: int = 1) -> Run:
    """JetStream publishes of clients that wait for each ack, spread over all nodes."""

    def run(cluster: LocalCluster) -> Figures:
        with connect(cluster) as client:
            for number in range(streams):
                create_stream(client, f"W{number}", replicas=replicas)
        with _waiting_clients(cluster, clients, streams) as load:
            WaitingLoad(load.clients, seconds=0.5).run()
            figures = measured(cluster, load.run)
        latencies = sorted(load.latencies)
        count = len(latencies)
        figures[MEDIAN] = 1e3 * latencies[count // 2]
        figures[P99] = 1e3 * latencies[count * 99 // 100]
        return figures

    return run


def fetch_one_by_one(*, replicas: int = 1, count: int = 2_000) -> Run:
    """Fetch one message, ack it, fetch the next."""

    def run(cluster: LocalCluster) -> Figures:
        with connect(cluster) as client:
            create_stream(client, "BENCH", replicas=replicas)
            client.publish_acked(FILL_SUBJECT, size=128, count=count + 200, window=WINDOW)
            create_consumer(client, ack_policy="explicit")
            client.fetch_one_by_one("BENCH", "C", count=200)
            return measured(cluster, lambda: client.fetch_one_by_one("BENCH", "C", count=count))

    return run


def request_reply(*, count: int = 3_000) -> Run:
    """Core NATS: a request, one responder, its reply."""

    def run(cluster: LocalCluster) -> Figures:
        port = cluster.nodes[0].client_port
        with closing(LoadClient(port)) as asking, closing(LoadClient(port)) as answering:
            asking.send(b"SUB _INBOX.asking.* 1\r\n")
            asking.flush()
            answering.send(b"SUB service 1\r\n")
            answering.flush()
            latencies: list[float] = []

            def ask() -> Load:
                latencies.extend(_ask(asking, answering, count))
                return Load(count, sum(latencies))

            figures = measured(cluster, ask)
        latencies.sort()
        figures[MEDIAN] = 1e3 * latencies[count // 2]
        figures[P99] = 1e3 * latencies[count * 99 // 100]
        return figures

    return run


def _ask(asking: LoadClient, answering: LoadClient, count: int) -> list[float]:
    question, answer = b"x" * 127 + b"?", b"x" * 127 + b"!"
    ask = b"PUB service _INBOX.asking.1 %d\r\n%b\r\n" % (len(question), question)
    reply = b"PUB _INBOX.asking.1 %d\r\n%b\r\n" % (len(answer), answer)
    latencies: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        asking.send(ask)
        _receive_until(answering, b"?\r\n")
        answering.send(reply)
        _receive_until(asking, b"!\r\n")
        latencies.append(time.perf_counter() - began)
    return latencies


def _receive_until(client: LoadClient, end: bytes) -> None:
    received = b""
    while not received.endswith(end):
        received += client.socket.recv(1 << 16)
        if b"PING\r\n" in received:
            client.send(b"PONG\r\n")


def idle_memory() -> Run:
    """Of a node with JetStream and without clients."""

    def run(cluster: LocalCluster) -> Figures:
        settle(cluster)
        return {MEMORY: resident_bytes(cluster.nodes[0].pid) / 1e6}

    return run


def publish_large(*, size: int, count: int, window: int, replicas: int = 1) -> Run:
    """As publish_acked. With one replica also the share of what the disk takes in the same run,
    written and synced by a megabyte."""

    def run(cluster: LocalCluster) -> Figures:
        with connect(cluster) as client:
            create_stream(client, "BENCH", replicas=replicas)
            figures = measured(
                cluster,
                lambda: client.publish_acked(FILL_SUBJECT, size=size, count=count, window=window),
            )
        if replicas == 1:
            disk = synced_bytes_per_second(cluster.directory, size * count)
            figures[SHARE] = figures[RATE] * size / disk
        return figures

    return run


def synced_bytes_per_second(directory: Path, size: int) -> float:
    """What the disk takes of one writer that syncs after every megabyte, in a prepared file."""
    path, piece = directory / "synced", bytes(SYNCED_BYTES)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        pieces = max(1, size // SYNCED_BYTES)
        for number in range(pieces):
            os.pwrite(descriptor, piece, number * SYNCED_BYTES)
        os.fsync(descriptor)
        started = time.perf_counter()
        for number in range(pieces):
            os.pwrite(descriptor, piece, number * SYNCED_BYTES)
            os.fdatasync(descriptor)
        return pieces * SYNCED_BYTES / (time.perf_counter() - started)
    finally:
        os.close(descriptor)
        path.unlink()
