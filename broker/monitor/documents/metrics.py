"""/metrics: the server's numbers for Prometheus.

Owns: the metric names and the collector that reads them at scrape time.
May not touch: live state, beyond reading numbers. One registry per server, nothing global.
Spec: Prometheus text exposition format."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broker.config.options import VERSION
from broker.monitor.documents.varz import resident_bytes
from broker.monitor.observed import Observed
from broker.wire import IMPLEMENTATION

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServerCollector(Collector):
    """Reads everything at scrape time; nothing is counted per message."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    def collect(self) -> Iterator[Metric]:
        observed = self._observed
        info = GaugeMetricFamily(
            "jetraft_server_info",
            "Names and versions of this server; the value is always 1",
            labels=["server_id", "server_name", "version", "codec"],
        )
        info.add_metric([observed.id, observed.name, VERSION, IMPLEMENTATION], 1)
        yield info
        yield from self._traffic()
        yield from self._gauges()
        yield from self._runtime()

    def _traffic(self) -> Iterator[Metric]:
        traffic = self._observed.server.connections.traffic()
        for name, text, value in (
            ("in_messages", "Messages received from clients", traffic.in_msgs),
            ("in_bytes", "Header and payload bytes received from clients", traffic.in_bytes),
            ("out_messages", "Messages sent to clients", traffic.out_msgs),
            ("out_bytes", "Header and payload bytes sent to clients", traffic.out_bytes),
            ("slow_consumers", "Clients closed for being slow", traffic.slow_consumers),
            ("stale_connections", "Clients closed for inactivity", traffic.stale_connections),
            ("stalls", "Times a producer was paused for a slow client", traffic.stalls),
            ("connections_opened", "Connections ever accepted", traffic.total_connections),
        ):
            yield CounterMetricFamily(f"jetraft_{name}", text, value=value)

    def _gauges(self) -> Iterator[Metric]:
        observed = self._observed
        pending = sum(one.pending_bytes for one in observed.server.connections.values())
        subs = sum(len(account.subs) for account in observed.server.accounts.values())
        lag = observed.server.lag
        for name, text, value in (
            ("connections", "Open client connections", float(len(observed.server.connections))),
            ("subscriptions", "Subscriptions of all accounts", float(subs)),
            ("pending_bytes", "Bytes waiting to be written to clients", float(pending)),
            ("memory_bytes", "Resident memory", float(resident_bytes())),
            ("start_time_seconds", "When the server started", observed.server.identity.started),
            (
                "loop_lag_seconds",
                "Lateness of the event loop at the last probe",
                0.0 if lag is None else lag.last_s,
            ),
            (
                "loop_lag_recent_max_seconds",
                "Worst lateness of the event loop since the last scrape",
                0.0 if lag is None else lag.take_recent(),
            ),
            (
                "loop_lag_max_seconds",
                "Worst lateness of the event loop since start",
                0.0 if lag is None else lag.worst_s,
            ),
        ):
            yield GaugeMetricFamily(f"jetraft_{name}", text, value=value)

    def _runtime(self) -> Iterator[Metric]:
        runtime = self._observed.runtime
        if runtime is None:
            return
        families: dict[str, GaugeMetricFamily] = {}
        for name, text, labels, value in runtime.metrics():
            family = families.get(name)
            if family is None:
                family = families[name] = GaugeMetricFamily(name, text, labels=list(labels))
            family.add_metric(list(labels.values()), value)
        yield from families.values()


class Metrics:
    """The registry of one server."""

    def __init__(self, observed: Observed) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(ServerCollector(observed))

    def text(self) -> bytes:
        return generate_latest(self._registry)
