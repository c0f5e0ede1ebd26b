"""The documents /jsz and /healthz, and the JetStream gauges of /metrics.

Owns: their content.
May not touch: live state beyond reading it; one call, one frozen answer.
Spec: nats-server monitoring (/jsz, /healthz). Startup, liveness and readiness are separate
questions, as Kubernetes probes ask them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.cluster.meta.assignments import META_GROUP, AssignmentTable
from broker.cluster.observe.asset_info import AssetInfo
from broker.cluster.replica.replica_table import ReplicaTable
from broker.config.options import JetStreamOptions
from broker.jetstream.api.info import ApiStats
from broker.jetstream.config.api_levels import API_LEVEL
from broker.jetstream.config.names import get_hash
from broker.jetstream.strict_json import to_wire
from broker.jetstream.times import rfc3339
from broker.server.services import Document, Query
from raft.host.statistics import HostStatistics

if TYPE_CHECKING:
    from broker.cluster.replica.replica import Replica

Gauge = tuple[str, str, dict[str, str], float]
_TRUE = ("1", "true", "yes", "on")


@dataclass(slots=True)
class JetStreamMonitor:
    """One per node."""

    server_id: str
    options: JetStreamOptions
    replicas: ReplicaTable
    assignments: AssignmentTable
    info: AssetInfo
    api: Callable[[], ApiStats]
    trouble: Callable[[], str | None]  # why the store accepts no writes
    statistics: Callable[[], HostStatistics]
    requests_dropped: Callable[[], int]
    lame_duck: Callable[[], bool]

    def jsz(self, query: Query) -> Document:
        replicas, api = list(self.replicas), self.api()
        document: Document = {
            "server_id": self.server_id,
            "now": rfc3339(self.info.now_ns()),
            "config": {
                "max_memory": self.options.max_memory_store or -1,
                "max_storage": self.options.max_file_store or -1,
                "store_dir": self.options.store_dir,
                "sync_interval": self.options.sync_interval_ns,
                **({"sync_always": True} if self.options.flush_interval_s is None else {}),
                "domain": self.options.domain,
            },
            "memory": _stored(replicas, "memory"),
            "storage": _stored(replicas, "file"),
            "reserved_memory": 0,
            "reserved_storage": 0,
            "accounts": len({a.account for a in self.assignments}) or 1,
            "ha_assets": sum(len(r.assignment.peers) > 1 for r in replicas),
            "api": {"level": API_LEVEL, "total": api.total, "errors": api.errors},
            "streams": len(replicas),
            "consumers": sum(r.consumer_count for r in replicas),
            "messages": sum(r.stream.store.messages for r in replicas),
            "bytes": sum(r.stream.store.bytes for r in replicas),
            "total": len(replicas),
        }
        if self.info.members.clustered:
            document["meta_cluster"] = self._meta_cluster()
        if _asked(query, "accounts", "streams", "consumers") or query.get("acc"):
            document["account_details"] = self._accounts(replicas, query)
        return document

    def _meta_cluster(self) -> Document:
        links, members = self.info.links, self.info.members
        leader = self.info.leader(META_GROUP)
        replicas = [
            {
                "name": members.name(member),
                "current": links.connected(member),
                "offline": not links.connected(member),
                "active": links.silent_ns(member),
                "peer": get_hash(members.name(member)),
            }
            for member in members.nodes
            if member != leader
        ]
        return {
            "name": links.cluster,
            "leader": members.name(leader) if leader is not None else "",
            "peer": get_hash(members.name(leader)) if leader is not None else "",
            "cluster_size": len(members.nodes),
            "quorum_needed": len(members.nodes) // 2 + 1,
            "pending": 0,
            "replicas": replicas,
        }

    def _accounts(self, replicas: list[Replica], query: Query) -> list[Document]:
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
                    self._stream(replica, query)
                    for replica in held
                    if named and (replica.leading is not None or not led_only)
                ],
            }
            for account, held in by_account.items()
        ]

    def _stream(self, replica: Replica, query: Query) -> Document:
        wire = to_wire(self.info.stream(replica, shown=False))
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
                to_wire(self.info.consumer(replica, consumer, shown=False))
                for consumer in replica.consumers()
            ]
        return detail

    def healthz(self, query: Query) -> tuple[int, Document]:
        """`live`: the event loop runs, or this would not be answered. `startup`: the log is
        replayed and the meta group has a leader. `ready`, the default: this node can serve its
        clients."""
        if _asked(query, "live", "js-enabled-only"):
            return 200, {"status": "ok"}
        if (trouble := self.trouble()) is not None:
            return 503, _unavailable(f"the store takes no writes: {trouble}")
        if not self.info.members.founded.is_set():
            return 503, _unavailable("JetStream is still waiting for its cluster to form")
        if self.info.leader(META_GROUP) is None:
            return 503, _unavailable("JetStream has not established contact with a meta leader")
        if _asked(query, "startup"):
            return 200, {"status": "ok"}
        if self.lame_duck():
            return 503, _unavailable("lame duck mode")
        if recovering := self.statistics().recovering:
            # Another node that restarts now would take the last copy with it.
            return 503, _unavailable(f"{recovering} streams without their log are catching up")
        return 200, self._ok()

    def _ok(self) -> Document:
        if self.options.flush_interval_s is None:
            return {"status": "ok"}
        return {"status": "ok", "warnings": [self.options.sync_sentence]}

    def metrics(self) -> list[Gauge]:
        replicas = list(self.replicas)
        led = sum(replica.leading is not None for replica in replicas)
        found: list[Gauge] = [
            ("jetraft_streams", "Stream replicas on this node.", {}, len(replicas)),
            ("jetraft_streams_led", "Streams this node leads.", {}, led),
            ("jetraft_store_healthy", "1 while writes succeed.", {}, self.trouble() is None),
            (
                "jetraft_errands_dropped",
                "Acks and pulls without a leader.",
                {},
                self.requests_dropped(),
            ),
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


def _stored(replicas: list[Replica], storage: str) -> int:
    return sum(r.stream.store.bytes for r in replicas if r.stream.config.storage == storage)


def _asked(query: Query, *names: str) -> bool:
    return any(query.get(name, "").lower() in _TRUE for name in names)


def _unavailable(reason: str) -> dict[str, Any]:
    return {"status": "unavailable", "error": reason}
