"""STATSZ: the numbers of one server, small enough to be told every few seconds.

Owns: the document.
May not touch: live state beyond reading numbers.
Spec: core contract 9.1."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from broker.monitor.documents.varz import resident_bytes
from broker.server.process.times import timestamp
from broker.server.services import Document

if TYPE_CHECKING:
    from broker.server.server import Server


def statsz(server: Server, *, cpu: float) -> Document:
    traffic = server.traffic()
    received = {"msgs": traffic.in_msgs, "bytes": traffic.in_bytes}
    sent = {"msgs": traffic.out_msgs, "bytes": traffic.out_bytes}
    services = server.services
    routes = [] if services is None else services.routez()["routes"]
    document: Document = {
        "start": timestamp(server.started),
        "mem": resident_bytes(),
        "cores": os.cpu_count() or 1,
        "cpu": cpu,
        "connections": len(server.connections),
        "total_connections": server.counters.total_connections,
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
    if services is not None and server.options.jetstream is not None:
        document["jetstream"] = services.varz_jetstream()
    return document


def _route(route: Document) -> Document:
    return {
        "rid": route["rid"],
        "name": route["remote_name"],
        "sent": {"msgs": route.get("out_msgs", 0), "bytes": route.get("out_bytes", 0)},
        "received": {"msgs": route.get("in_msgs", 0), "bytes": route.get("in_bytes", 0)},
        "pending": route.get("pending_size", 0),
    }
