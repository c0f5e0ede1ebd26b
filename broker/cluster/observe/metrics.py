"""The JetStream gauges of /metrics.

Owns: their names and help texts.
May not touch: live state beyond reading it; the format of Prometheus (broker/monitor).
Spec: Prometheus, metric and label naming."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.cluster.replica.replica_table import ReplicaTable
from raft.store.disk_space import DiskFacts

Gauge = tuple[str, str, dict[str, str], float]  # name, help, labels, value


@dataclass(slots=True)
class JetStreamMetrics:
    """One per node."""

    replicas: ReplicaTable
    trouble: Callable[[], str | None]  # why the store takes no writes
    disk: Callable[[], DiskFacts]
    disk_full: Callable[[], bool]
    requests_dropped: Callable[[], int]
    clock_error_ns: Callable[[], int]
    clock_trouble: Callable[[], str | None]

    def gauges(self) -> list[Gauge]:
        replicas = list(self.replicas)
        led = sum(replica.leading is not None for replica in replicas)
        found: list[Gauge] = [
            ("jetraft_streams", "Stream replicas on this node.", {}, len(replicas)),
            ("jetraft_streams_led", "Streams this node leads.", {}, led),
            ("jetraft_store_healthy", "1 while writes succeed.", {}, self.trouble() is None),
            (
                "jetraft_consumer_requests_dropped",
                "Acks and pulls without a leader.",
                {},
                self.requests_dropped(),
            ),
            (
                "jetraft_clock_offset_seconds",
                "How far the clock of this node is ahead of the time of the cluster.",
                {},
                self.clock_error_ns() / 1e9,
            ),
            (
                "jetraft_clock_agrees",
                "1 while the clock of this node is that of a majority.",
                {},
                self.clock_trouble() is None,
            ),
        ]
        disk = self.disk()
        found += [
            ("jetraft_disk_bytes", "Size of the store's file system.", {}, disk.total_bytes),
            ("jetraft_disk_free_bytes", "Free bytes of it.", {}, disk.free_bytes),
            (
                "jetraft_disk_reserve_bytes",
                "With less than this free, no messages are stored.",
                {},
                disk.reserve_bytes,
            ),
            ("jetraft_disk_full", "1 while no messages are stored.", {}, self.disk_full()),
        ]
        for replica in replicas:
            labels = {"account": replica.assignment.account, "stream": replica.name}
            store = replica.stream.store
            found += [
                ("jetraft_stream_messages", "Messages stored.", labels, store.messages),
                ("jetraft_stream_bytes", "Bytes stored.", labels, store.bytes),
                ("jetraft_stream_last_sequence", "Newest sequence.", labels, store.last_seq),
                (
                    "jetraft_stream_applied_index",
                    "Raft index applied.",
                    labels,
                    replica.stream.applied,
                ),
            ]
        return found
