"""/jsz: the streams, consumers and limits of this node.

Owns: the content of the document.
May not touch: live state beyond reading it; one call, one frozen answer.
Spec: nats-server monitoring, /jsz."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.cluster.meta.assignments import META_GROUP, AssignmentTable
from broker.cluster.observe.asset_info import AssetInfo
from broker.cluster.replica.replica_table import ReplicaTable
from broker.config.options import JetStreamOptions
from broker.jetstream.api.info import ApiStats
from broker.jetstream.config.api_levels import API_LEVEL
from broker.jetstream.config.names import get_hash
from broker.jetstream.strict_json import to_wire
from broker.jetstream.times import rfc3339
from broker.server.services import Document, Query, has_flag
from raft import NodeId

if TYPE_CHECKING:
    from broker.cluster.replica.replica import Replica


@dataclass(slots=True)
class JetStreamDocument:
    """One per node."""

    server_id: str
    options: JetStreamOptions
    replicas: ReplicaTable
    assignments: AssignmentTable
    info: AssetInfo
    api: Callable[[str], ApiStats]  # of an account, of all under ""

    def jsz(self, query: Query) -> Document:
        replicas, api = list(self.replicas), self.api("")
        document: Document = {
            "server_id": self.server_id,
            "now": rfc3339(self.info.now_ns()),
            "config": {
                "max_memory": _or_unlimited(self.options.max_memory_store),
                "max_storage": _or_unlimited(self.options.max_file_store),
                "store_dir": self.options.store_dir,
                "sync_interval": self.options.sync_interval_ns,
                **({"sync_always": True} if self.options.flush_interval_s is None else {}),
                **({"domain": self.options.domain} if self.options.domain else {}),
                "strict": self.options.strict,
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
        if has_flag(query, "raft"):
            led = [replica for replica in replicas if replica.leading is not None]
            document["streams_leader"] = len(led)
            document["consumers_leader"] = sum(replica.consumer_count for replica in led)
        if self.info.members.clustered:
            document["meta_cluster"] = self._meta_cluster()
        if has_flag(query, "accounts", "streams", "consumers") or query.get("acc"):
            document["account_details"] = self._accounts(replicas, query)
        return document

    def _meta_cluster(self) -> Document:
        links, members = self.info.links, self.info.members
        leader = self.info.leader(META_GROUP)
        replicas = [self._meta_replica(member) for member in members.nodes if member != leader]
        return {
            "name": links.cluster,
            "leader": members.name(leader) if leader is not None else "",
            "peer": get_hash(members.name(leader)) if leader is not None else "",
            "cluster_size": len(members.nodes),
            "quorum_needed": len(members.nodes) // 2 + 1,
            "pending": 0,
            "replicas": replicas,
        }

    def _meta_replica(self, member: NodeId) -> Document:
        links, name = self.info.links, self.info.members.name(member)
        current, lag = self.info.meta_peer(member)
        document: Document = {
            "name": name,
            "current": current,
            "offline": not links.connected(member),
            "active": links.silent_ns(member),
            "peer": get_hash(name),
        }
        return {**document, "lag": lag} if lag else document

    def _accounts(self, replicas: list[Replica], query: Query) -> list[Document]:
        by_account: dict[str, list[Replica]] = {}
        for replica in sorted(replicas, key=lambda r: r.name):
            if query.get("acc") in (None, "", replica.assignment.account):
                by_account.setdefault(replica.assignment.account, []).append(replica)
        led_only = has_flag(query, "stream-leader-only")
        named = has_flag(query, "streams", "consumers")
        return [
            {
                "name": account,
                "id": account,
                **self._numbers(account, held),
                "stream_detail": [
                    self._stream(replica, query)
                    for replica in held
                    if named and (replica.leading is not None or not led_only)
                ],
            }
            for account, held in by_account.items()
        ]

    def _numbers(self, account: str, held: list[Replica]) -> Document:
        api = self.api(account)
        return {
            "memory": _stored(held, "memory"),
            "storage": _stored(held, "file"),
            "reserved_memory": 0,
            "reserved_storage": 0,
            "accounts": 0,
            "ha_assets": sum(len(replica.assignment.peers) > 1 for replica in held),
            "api": {"level": 0, "total": api.total, "errors": api.errors},
        }

    def _stream(self, replica: Replica, query: Query) -> Document:
        wire = to_wire(self.info.stream(replica, shown=False))
        assert isinstance(wire, dict)
        detail: Document = {
            "name": replica.name, "created": wire["created"], "state": wire["state"],
            "cluster": wire.get("cluster"), "applied": replica.stream.applied,
            "leads": replica.leading is not None,
        }  # fmt: skip
        if has_flag(query, "config"):
            detail["config"] = wire["config"]
        if has_flag(query, "consumers"):
            hidden = () if has_flag(query, "config") else ("config",)
            detail["consumer_detail"] = [
                _without(to_wire(self.info.consumer(replica, consumer, shown=False)), *hidden)
                for consumer in replica.consumers()
            ]
        return detail


def _without(wire: object, *names: str) -> Document:
    assert isinstance(wire, dict)
    return {name: value for name, value in wire.items() if name not in names}


def _stored(replicas: list[Replica], storage: str) -> int:
    return sum(r.stream.store.bytes for r in replicas if r.stream.config.storage == storage)


def _or_unlimited(limit: int | None) -> int:
    return -1 if limit is None else limit
