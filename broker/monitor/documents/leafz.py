"""/leafz: the leaf node connections of this server.

Owns: that document, and what /varz says of leaf nodes.
May not touch: connections, beyond reading them.
Spec: NATS monitoring, /leafz (subs, acc)."""

from __future__ import annotations

from urllib.parse import urlsplit

from broker.config.options import LeafNodeOptions, LeafRemote
from broker.monitor.observed import Observed
from broker.server.leaf.leaf_connection import LeafConnection
from broker.server.leaf.leaf_sink import LeafSink
from broker.server.process.times import short_span
from broker.server.services import Document, Query, has_flag
from broker.subjects import SinkKind


def leafz(observed: Observed, query: Query) -> Document:
    account = query.get("acc", "")
    found = [
        (connection, connection.sink)
        for connection in observed.server.leafs.connections()
        if connection.sink is not None and (not account or connection.sink.account.name == account)
    ]
    detailed = has_flag(query, "subs")
    listed = [_leaf(connection, sink, subs=detailed) for connection, sink in found]
    return {"leafnodes": len(observed.server.leafs), "leafs": listed}


def _leaf(connection: LeafConnection, sink: LeafSink, *, subs: bool) -> Document:
    document: Document = {
        "id": connection.cid,
        "name": connection.remote_name,
        "is_spoke": sink.kind is SinkKind.HUB,
        "account": sink.account.name,
        "ip": connection.socket.host,
        "port": connection.socket.port,
        "rtt": short_span(connection.rtt_s),
        "in_msgs": sink.in_msgs,
        "out_msgs": sink.out_msgs,
        "in_bytes": sink.in_bytes,
        "out_bytes": sink.out_bytes,
        "subscriptions": len(sink.subs),
    }
    if subs:
        document["subscriptions_list"] = [
            subject.decode(errors="replace") for subject, _ in sink.subs
        ]
    if sink.kind is SinkKind.HUB:
        document["speaks"] = sink.speaks
    return document | {"compression": connection.compression}


def varz_leaf(observed: Observed) -> Document:
    """What the configuration says of leaf nodes."""
    options = observed.server.options.leafnodes
    return {} if options is None else _listener(options, observed.server.leaf_port) | _hubs(options)


def _listener(options: LeafNodeOptions, port: int) -> Document:
    if not options.port:
        return {}
    auth = options.authorization
    timeout_s = 2 if auth is None or auth.timeout_ns is None else auth.timeout_ns / 1e9
    tls_s = 2 if options.tls is None else options.tls.timeout_ns / 1e9
    document: Document = {
        "host": options.host,
        "port": port,
        "auth_timeout": timeout_s,
        "tls_timeout": tls_s,
    }
    if options.tls is not None:
        document["tls_required"] = True
    return document


def _hubs(options: LeafNodeOptions) -> Document:
    hubs = [_hub(remote) for remote in options.remotes]
    return {"remotes": hubs} if hubs else {}


def _hub(remote: LeafRemote) -> Document:
    places = [urlsplit(url if "//" in url else f"nats-leaf://{url}").netloc for url in remote.urls]
    document: Document = {
        "local_account": remote.account,
        "urls": [place.rpartition("@")[2] for place in places],
    }
    denied = {"exports": remote.deny_exports, "imports": remote.deny_imports}
    deny = {name: [one.decode() for one in found] for name, found in denied.items() if found}
    return document | ({"deny": deny} if deny else {})
