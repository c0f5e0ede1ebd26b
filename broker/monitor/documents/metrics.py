"""/metrics: the server's numbers for Prometheus.

Owns: the names of what the server itself counts, and the answer as a whole.
May not touch: live state, beyond reading numbers. Nothing is counted per message for it.
Spec: Prometheus text exposition format. The text of thousands of streams is made in steps, so that
the event loop does other work in between; docs/monitoring.md lists all names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest

from broker.config.options import VERSION
from broker.monitor.documents.varz import resident_bytes
from broker.monitor.observed import Observed
from broker.server.client.connections import Counters
from broker.server.metric_samples import Exposition, Family, Sample, counter, gauge, labels
from broker.subjects import Steps
from broker.wire import IMPLEMENTATION

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

INFO = gauge("server_info", "Names and versions of this server; the value is always 1.")
TRAFFIC: dict[str, Family] = {
    "in_msgs": counter("in_messages", "Messages received from clients."),
    "in_bytes": counter("in_bytes", "Header and payload bytes received from clients."),
    "out_msgs": counter("out_messages", "Messages sent to clients."),
    "out_bytes": counter("out_bytes", "Header and payload bytes sent to clients."),
    "slow_consumers": counter("slow_consumers", "Clients closed for being slow."),
    "stale_connections": counter("stale_connections", "Clients closed for inactivity."),
    "stalls": counter("stalls", "Times a producer was paused for a slow client."),
    "total_connections": counter("connections_opened", "Connections ever accepted."),
    "auth_failures": counter("auth_failures", "Clients refused for their credentials."),
}
CONNECTIONS = gauge("connections", "Open client connections.")
CONNECTIONS_MAX = gauge("connections_max", "The limit of them.")
SUBSCRIPTIONS = gauge("subscriptions", "Subscriptions of all accounts.")
PENDING = gauge("pending_bytes", "Bytes waiting to be written to clients.")
MEMORY = gauge("memory_bytes", "Resident memory.")
STARTED = gauge("start_time_seconds", "When the server started.")
LAG = gauge("loop_lag_seconds", "Lateness of the event loop at the last probe.")
LAG_RECENT = gauge(
    "loop_lag_recent_max_seconds", "Worst lateness of the event loop since the last scrape."
)
LAG_WORST = gauge("loop_lag_max_seconds", "Worst lateness of the event loop since start.")
ACCOUNT_CONNECTIONS = gauge("account_connections", "Open client connections of an account.")


class Metrics:
    """One per server. The numbers of the process (process_*, python_gc_*) are those of the client
    library, under the names that dashboards expect."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        GCCollector(registry=self._process)

    def text(self) -> Steps[bytes]:
        into = Exposition()
        into.add(_server(self._observed))
        if self._observed.runtime is not None:
            yield from self._observed.runtime.metrics(into)
        parts = []
        for part in into.parts():
            parts.append(part)
            yield
        return b"".join(parts) + generate_latest(self._process)


def _server(observed: Observed) -> Iterator[Sample]:
    named = {
        "server_id": observed.id, "server_name": observed.name,
        "version": VERSION, "codec": IMPLEMENTATION,
    }  # fmt: skip
    yield Sample(INFO, 1, labels(named))
    server = observed.server
    traffic = server.connections.traffic()
    for name in (one.name for one in fields(Counters)):
        yield Sample(TRAFFIC[name], getattr(traffic, name))
    limit = server.options.limits.max_connections
    yield Sample(CONNECTIONS, len(server.connections))
    if limit > 0:
        yield Sample(CONNECTIONS_MAX, limit)
    yield Sample(SUBSCRIPTIONS, sum(len(account.subs) for account in server.accounts.values()))
    yield Sample(PENDING, sum(one.pending_bytes for one in server.connections.values()))
    yield Sample(MEMORY, resident_bytes())
    yield Sample(STARTED, server.identity.started)
    lag = server.lag
    yield Sample(LAG, 0.0 if lag is None else lag.last_s)
    yield Sample(LAG_RECENT, 0.0 if lag is None else lag.take_recent())
    yield Sample(LAG_WORST, 0.0 if lag is None else lag.worst_s)
    for account in server.accounts.values():
        if account.connections:
            where = labels({"account": account.name})
            yield Sample(ACCOUNT_CONNECTIONS, len(account.connections), where)
