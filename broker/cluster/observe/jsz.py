"""What monitoring is told of JetStream on this node.

Owns: the documents of /jsz and /healthz, and the gauges of /metrics.
May not touch: live state beyond reading it; one call, one frozen answer.
Spec: core contract 7; deployment study D1: startup, liveness and readiness are three questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.cluster.meta.assignments import META_GROUP
from broker.cluster.observe.asset_info import consumer_info, stream_info
from broker.jetstream.config.api_levels import API_LEVEL
from broker.jetstream.config.consumer_update import is_internal
from broker.jetstream.config.names import get_hash
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.strict_json import to_wire
from broker.jetstream.times import rfc3339
from broker.server.services import Document, Query

if TYPE_CHECKING:
    from broker.cluster.api.jetstream_api import ApiService
    from broker.cluster.node import JetStreamNode
    from broker.cluster.replica.replica import Replica

Gauge = tuple[str, str, dict[str, str], float]
_TRUE = ("1", "true", "yes", "on")


def jsz(node: JetStreamNode, api: ApiService, query: Query) -> Document:
    replicas = list(node.replicas.values())
    document: Document = {
        "server_id": node.server.id,
        "now": rfc3339(node.now_ns()),
        "config": {
            "max_memory": node.options.max_memory_store or -1,
            "max_storage": node.options.max_file_store or -1,
            "store_dir": node.options.store_dir,
            "sync_interval": node.options.sync_interval_ns,
            **({"sync_always": True} if node.options.flush_interval_s is None else {}),
            "domain": node.options.domain,
        },
        "memory": _stored(replicas, "memory"),
        "storage": _stored(replicas, "file"),
        "reserved_memory": 0,
        "reserved_storage": 0,
        "accounts": len({a.account for a in node.meta}) or 1,
        "ha_assets": sum(len(r.assignment.peers) > 1 for r in replicas),
        "api": {"level": API_LEVEL, "total": api.total, "errors": api.errors},
        "streams": len(replicas),
        "consumers": sum(
            not is_internal(c.config) for r in replicas for c in r.stream.consumers.values()
        ),
        "messages": sum(r.stream.store.messages for r in replicas),
        "bytes": sum(r.stream.store.bytes for r in replicas),
        "total": len(replicas),
    }
    if len(node.members) > 1:
        document["meta_cluster"] = _meta_cluster(node)
    if _asked(query, "accounts", "streams", "consumers") or query.get("acc"):
        document["account_details"] = _accounts(node, replicas, query)
    return document


def _meta_cluster(node: JetStreamNode) -> Document:
    leader = node.leader(META_GROUP)
    replicas = [
        {
            "name": node.member_name(member),
            "current": node.mesh.connected(member),
            "offline": not node.mesh.connected(member),
            "active": node.mesh.silent_ns(member),
            "peer": get_hash(node.member_name(member)),
        }
        for member in node.members
        if member != leader
    ]
    return {
        "name": node.mesh.cluster,
        "leader": node.member_name(leader) if leader is not None else "",
        "peer": get_hash(node.member_name(leader)) if leader is not None else "",
        "cluster_size": len(node.members),
        "quorum_needed": len(node.members) // 2 + 1,
        "pending": 0,
        "replicas": replicas,
    }


def _accounts(node: JetStreamNode, replicas: list[Replica], query: Query) -> list[Document]:
    by_account: dict[str, list[Replica]] = {}
    for replica in sorted(replicas, key=lambda r: r.name):
        if query.get("acc") in (None, "", replica.assignment.account):
            by_account.setdefault(replica.assignment.account, []).append(replica)
    led_only = _asked(query, "stream-leader-only")
    named = _asked(query, "streams", "consumers")
    return [
        {
            "name": account,
            "id": account,
            "memory": _stored(held, "memory"),
            "storage": _stored(held, "file"),
            "stream_detail": [
                _stream(node, replica, query)
                for replica in held
                if named and (replica.leading is not None or not led_only)
            ],
        }
        for account, held in by_account.items()
    ]


def _stream(node: JetStreamNode, replica: Replica, query: Query) -> Document:
    wire = to_wire(stream_info(node, replica, shown=False))
    assert isinstance(wire, dict)
    detail: Document = {
        "name": replica.name, "created": wire["created"], "state": wire["state"],
        "cluster": wire.get("cluster"), "applied": replica.stream.applied,
        "leads": replica.leading is not None,
    }  # fmt: skip
    if _asked(query, "config"):
        detail["config"] = wire["config"]
    if _asked(query, "consumers"):
        detail["consumer_detail"] = [
            to_wire(consumer_info(node, replica, consumer, shown=False))
            for consumer in replica.stream.consumers.values()
            if isinstance(consumer, Consumer)
        ]
    return detail


def _stored(replicas: list[Replica], storage: str) -> int:
    return sum(r.stream.store.bytes for r in replicas if r.stream.config.storage == storage)


def healthz(node: JetStreamNode, query: Query) -> tuple[int, Document]:
    """`live`: the loop turns (that this runs shows it). `startup`: the log is replayed and the
    meta group joined. `ready`, and no question at all: this node can serve its clients."""
    if _asked(query, "live", "js-enabled-only"):
        return 200, {"status": "ok"}
    if (trouble := node.host.trouble()) is not None:
        return 503, _unavailable(f"the store takes no writes: {trouble}")
    if not node.formed.is_set():
        return 503, _unavailable("JetStream is still waiting for its cluster to form")
    if node.leader(META_GROUP) is None:
        return 503, _unavailable("JetStream has not established contact with a meta leader")
    if _asked(query, "startup"):
        return 200, {"status": "ok"}
    if node.server.lame_duck:
        return 503, _unavailable("lame duck mode")
    if recovering := node.host.statistics().recovering:
        # Another node that restarts now would take the last copy with it.
        return 503, _unavailable(f"{recovering} streams without their log are catching up")
    return 200, _ok(node)


def _ok(node: JetStreamNode) -> Document:
    if node.options.flush_interval_s is None:
        return {"status": "ok"}
    return {"status": "ok", "warnings": [node.options.sync_sentence]}


def metrics(node: JetStreamNode) -> list[Gauge]:
    replicas = list(node.replicas.values())
    led = sum(replica.leading is not None for replica in replicas)
    found: list[Gauge] = [
        ("jetraft_streams", "Stream replicas on this node.", {}, len(replicas)),
        ("jetraft_streams_led", "Streams this node leads.", {}, led),
        ("jetraft_store_healthy", "1 while writes succeed.", {}, node.host.trouble() is None),
        ("jetraft_errands_dropped", "Acks and pulls without a leader.", {}, node.errands.dropped),
    ]
    for replica in replicas:
        labels = {"account": replica.assignment.account, "stream": replica.name}
        store = replica.stream.store
        found += [
            ("jetraft_stream_messages", "Messages stored.", labels, store.messages),
            ("jetraft_stream_bytes", "Bytes stored.", labels, store.bytes),
            ("jetraft_stream_last_sequence", "Newest sequence.", labels, store.last_seq),
            ("jetraft_stream_applied_index", "Raft index applied.", labels, replica.stream.applied),
        ]
    return found


def _asked(query: Query, *names: str) -> bool:
    return any(query.get(name, "").lower() in _TRUE for name in names)


def _unavailable(reason: str) -> dict[str, Any]:
    return {"status": "unavailable", "error": reason}
