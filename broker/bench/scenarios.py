"""Scenarios of publishing, delivery and core messages, for any server.

Owns: the load of each scenario and the figures it returns.
May not touch: which servers run it, how often, what is printed.
Figures are a dictionary by unit, because a scenario may have several."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable
from contextlib import closing

from broker.bench.load import PUB_ACK, Load, LoadClient, Requests, cpu_seconds
from broker.local import LocalCluster

Figures = dict[str, float]
Run = Callable[[LocalCluster], Figures]

RATE = "msgs/s"
CPU = "CPU s/million"
WINDOW = 16_384
FILL_SUBJECT = "BENCH.a"
IDLE_S = 0.5
IDLE_CPU_S = 0.03  # of one server in that time: timers only
SETTLED_WITHIN_S = 60.0


def connect(cluster: LocalCluster) -> closing[LoadClient]:
    return closing(LoadClient(cluster.nodes[0].client_port))


def measured(cluster: LocalCluster, work: Callable[[], Load]) -> Figures:
    """Messages per second, and CPU microseconds per message, summed over all server processes."""
    before = sum(cpu_seconds(node.pid) for node in cluster.nodes)
    load = work()
    used = sum(cpu_seconds(node.pid) for node in cluster.nodes) - before
    return {RATE: load.per_second, CPU: used / load.messages * 1e6}


def settle(cluster: LocalCluster) -> None:
    """Wait until the servers are idle, so that work left over is not counted in the next figure."""
    deadline = time.monotonic() + SETTLED_WITHIN_S
    used = -1.0
    while time.monotonic() < deadline:
        before, used = used, sum(cpu_seconds(node.pid) for node in cluster.nodes)
        if used - before <= IDLE_CPU_S * len(cluster.nodes):
            return
        time.sleep(IDLE_S)
    raise TimeoutError(f"the servers were still busy after {SETTLED_WITHIN_S} s")


def create_stream(
    client: LoadClient, name: str, *, replicas: int, storage: str = "file", **more: object
) -> None:
    config = {
        "name": name,
        "subjects": [f"{name}.>"],
        "storage": storage,
        "num_replicas": replicas,
        **more,
    }
    answer = client.request(f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode())
    if "error" in answer:
        raise RuntimeError(f"create {name}: {answer['error']}")


def create_consumer(client: LoadClient, name: str = "C", **config: object) -> None:
    body = {"stream_name": "BENCH", "config": {"durable_name": name, **config}}
    subject = f"$JS.API.CONSUMER.DURABLE.CREATE.BENCH.{name}"
    answer = client.request(subject, json.dumps(body).encode())
    if "error" in answer:
        raise RuntimeError(f"create consumer {name}: {answer['error']}")


def publish_acked(
    *, replicas: int = 1, size: int = 128, count: int = 300_000, storage: str = "file"
) -> Run:
    """JetStream publishes from one connection, many in flight, every ack awaited."""

    def run(cluster: LocalCluster) -> Figures:
        with connect(cluster) as client:
            create_stream(client, "BENCH", replicas=replicas, storage=storage)
            return measured(
                cluster,
                lambda: client.publish_acked(FILL_SUBJECT, size=size, count=count, window=WINDOW),
            )

    return run


def publish_one_by_one(*, size: int = 128, count: int = 2_000) -> Run:
    """JetStream publishes, each sent after the ack of the one before."""

    def run(cluster: LocalCluster) -> Figures:
        with connect(cluster) as client:
            create_stream(client, "BENCH", replicas=1)
            requests = Requests.of([FILL_SUBJECT.encode()], b"x" * size)
            client.one_by_one(requests, PUB_ACK, count=200)
            seconds = client.one_by_one(requests, PUB_ACK, count=count)
        return {"median ms": 1e3 * seconds[count // 2], "p99 ms": 1e3 * seconds[count * 99 // 100]}

    return run


def push_unacked(*, size: int = 128, count: int = 300_032) -> Run:
    """A stored stream delivered to one push consumer that does not ack."""

    def run(cluster: LocalCluster) -> Figures:
        with connect(cluster) as client, connect(cluster) as receiver:
            create_stream(client, "BENCH", replicas=1)
            client.publish_acked(FILL_SUBJECT, size=size, count=count, window=WINDOW)
            receiver.subscribe("deliver.here")

            def deliver() -> Load:
                started = time.perf_counter()
                create_consumer(client, deliver_subject="deliver.here", ack_policy="none")
                load = receiver.receive(FILL_SUBJECT, count=count)
                return Load(load.messages, time.perf_counter() - started)

            return measured(cluster, deliver)

    return run


def pull_acked(*, size: int = 128, count: int = 100_000) -> Run:
    """A stored stream fetched in batches of 500, every message acked."""

    def run(cluster: LocalCluster) -> Figures:
        with connect(cluster) as client:
            create_stream(client, "BENCH", replicas=1)
            client.publish_acked(FILL_SUBJECT, size=size, count=count, window=WINDOW)
            create_consumer(client, ack_policy="explicit", max_ack_pending=20_000)
            return measured(
                cluster, lambda: client.pull_acked("BENCH", "C", count=count, batch=500)
            )

    return run


def core_one_to_one(*, size: int = 128, count: int = 1_000_000) -> Run:
    """Core NATS: one publisher, one subscriber, no acks."""

    def run(cluster: LocalCluster) -> Figures:
        with connect(cluster) as subscriber:
            subscriber.subscribe("core.bench")
            sending = multiprocessing.get_context("fork").Process(
                target=_publish, args=(cluster.nodes[0].client_port, size, count)
            )

            def deliver() -> Load:
                sending.start()
                return subscriber.receive("core.bench", count=count - count % 256)

            figures = measured(cluster, deliver)
            sending.join()
            return figures

    return run


def _publish(port: int, size: int, count: int) -> None:
    """Runs in a separate process, so that it does not take CPU time from the subscriber."""
    publisher = LoadClient(port)
    publisher.publish("core.bench", size=size, count=count)
    publisher.flush()  # closing a socket with unread bytes may drop unsent ones
    publisher.close()
