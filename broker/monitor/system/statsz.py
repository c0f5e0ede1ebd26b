"""STATSZ: the numbers of one server, small enough to be published every few seconds.

Owns: the document.
May not touch: live state, beyond reading numbers.
Spec: NATS system account, $SYS.SERVER.<id>.STATSZ."""

from __future__ import annotations

import os

from broker.monitor.documents.varz import resident_bytes
from broker.monitor.observed import Observed
from broker.server.process.times import timestamp
from broker.server.services import Document
from broker.subjects import Steps


def statsz(observed: Observed, *, cpu: float) -> Steps[Document]:
    server, runtime = observed.server, observed.runtime
    jetstream: Document | None = None
    if runtime is not None and server.options.jetstream is not None:
        jetstream = yield from runtime.varz_jetstream()
    traffic = server.connections.traffic()
    received = {"msgs": traffic.in_msgs, "bytes": traffic.in_bytes}
    sent = {"msgs": traffic.out_msgs, "bytes": traffic.out_bytes}
    routes = [] if runtime is None else runtime.routez()["routes"]
    document: Document = {
        "start": timestamp(server.identity.started),
        "mem": resident_bytes(),
        "cores": os.cpu_count() or 1,
        "cpu": cpu,
        "connections": len(server.connections),
        "total_connections": server.connections.counters.total_connections,
        "active_accounts": sum(bool(one.connections) for one in server.accounts.values()),
        "subscriptions": sum(len(account.subs) for account in server.accounts.values()),
        "sent": sent,
        "sent_to_clients": sent,
        "received": received,
        "received_from_clients": received,
        "slow_consumers": traffic.slow_consumers,
        "active_servers": len(routes) + 1,
        "gomaxprocs": 1,
    }
    if traffic.slow_consumers:
        counts = {"clients": traffic.slow_consumers, "routes": 0, "gateways": 0, "leafs": 0}
        document["slow_consumer_stats"] = counts
    if routes:
        document["routes"] = [_route(one) for one in routes]
    if jetstream is not None:
        document["jetstream"] = jetstream
    return document


def _route(route: Document) -> Document:
    return {
        "rid": route["rid"],
        "name": route["remote_name"],
        "sent": {"msgs": route.get("out_msgs", 0), "bytes": route.get("out_bytes", 0)},
        "received": {"msgs": route.get("in_msgs", 0), "bytes": route.get("in_bytes", 0)},
        "pending": route.get("pending_size", 0),
    }
