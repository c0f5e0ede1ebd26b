"""/jsz: the streams, consumers and limits of this node.

Owns: the content of the document.
May not touch: live state beyond reading it. It is read in steps: streams come and go between them.
Spec: nats-server monitoring, /jsz."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.cluster.meta.assignments import META_GROUP, AssignmentTable
from broker.cluster.observe.asset_info import AssetInfo, raft_group_name
from broker.cluster.replica.replica_table import ReplicaTable
from broker.config.options import JetStreamOptions
from broker.jetstream.api.info import ApiStats
from broker.jetstream.config.api_levels import API_LEVEL
from broker.jetstream.config.names import get_hash
from broker.jetstream.strict_json import to_wire
from broker.jetstream.times import rfc3339
from broker.scan.server import Scans
from broker.server.services import Document, Query, has_flag
from broker.subjects import STEP_ITEMS, Steps
from raft import NodeId

if TYPE_CHECKING:
    from broker.cluster.replica.replica import Replica


@dataclass(slots=True)
class _Totals:
    """Sums over some replicas."""

    memory: int = 0
    storage: int = 0
    ha_assets: int = 0
    consumers: int = 0
    messages: int = 0
    led: int = 0
    consumers_led: int = 0

    def add(self, replica: Replica) -> None:
        store = replica.stream.store
        consumers = replica.consumer_count
        if replica.stream.config.storage == "memory":
            self.memory += store.bytes
        else:
            self.storage += store.bytes
        self.ha_assets += len(replica.assignment.peers) > 1
        self.consumers += consumers
        self.messages += store.messages
        if replica.leading is not None:
            self.led += 1
            self.consumers_led += consumers


@dataclass(slots=True)
class JetStreamDocument:
    """One per node."""

    server_id: str
    options: JetStreamOptions
    replicas: ReplicaTable
    assignments: AssignmentTable
    info: AssetInfo
    api: Callable[[str], ApiStats]  # of an account; "": of all accounts

    def jsz(self, query: Query) -> Steps[Document]:
        replicas, api = list(self.replicas), self.api("")
        totals = yield from _totals(replicas)
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
            "memory": totals.memory,
            "storage": totals.storage,
            "reserved_memory": 0,
            "reserved_storage": 0,
            "accounts": len({a.account for a in self.assignments}) or 1,
            "ha_assets": totals.ha_assets,
            "api": {"level": API_LEVEL, "total": api.total, "errors": api.errors},
            "streams": len(replicas),
            "consumers": totals.consumers,
            "messages": totals.messages,
            "bytes": totals.memory + totals.storage,
            "total": len(replicas),
            "limits": self._limits(),
        }
        if has_flag(query, "raft"):
            document["streams_leader"] = totals.led
            document["consumers_leader"] = totals.consumers_led
        if self.info.members.clustered:
            document["meta_cluster"] = self.meta_cluster()
        if has_flag(query, "accounts", "streams", "consumers") or query.get("acc"):
            document["account_details"] = yield from self._accounts(replicas, query)
        return document

    def _limits(self) -> Document:
        """Those that the configuration file sets."""
        limits = self.options.limits
        shown = {
            "max_request_batch": limits.max_request_batch,
            "max_ack_pending": limits.max_ack_pending,
            "max_duplicate_window": limits.duplicate_window_ns,
        }
        return {name: limit for name, limit in shown.items() if limit}

    def meta_cluster(self) -> Document:
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
            "pending_requests": 0,  # API requests have no queue
            "pending_infos": 0,
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

    def _accounts(self, replicas: list[Replica], query: Query) -> Steps[list[Document]]:
        by_account: dict[str, list[Replica]] = {}
        for replica in sorted(replicas, key=lambda r: r.name):
            if query.get("acc") in (None, "", replica.assignment.account):
                by_account.setdefault(replica.assignment.account, []).append(replica)
        found: list[Document] = []
        for account, held in by_account.items():
            document: Document = {"name": account, "id": account}
            document |= yield from self._numbers(account, held)
            document["stream_detail"] = yield from self._streams(held, query)
            found.append(document)
        return found

    def _streams(self, held: list[Replica], query: Query) -> Steps[list[Document]]:
        found: list[Document] = []
        if not has_flag(query, "streams", "consumers"):
            return found
        led_only = has_flag(query, "stream-leader-only")
        for replica in held:
            if self.replicas.get(replica.group) is not replica:
                continue  # deleted since the first step
            if replica.leading is not None or not led_only:
                found.append((yield from self._stream(replica, query)))
                yield
        return found

    def _numbers(self, account: str, held: list[Replica]) -> Steps[Document]:
        api, totals = self.api(account), (yield from _totals(held))
        return {
            "memory": totals.memory,
            "storage": totals.storage,
            "reserved_memory": 0,
            "reserved_storage": 0,
            "accounts": 0,
            "ha_assets": totals.ha_assets,
            "api": {"level": 0, "total": api.total, "errors": api.errors},
        }

    def _stream(self, replica: Replica, query: Query) -> Steps[Document]:
        wire = to_wire(self.info.stream(replica, shown=False))
        assert isinstance(wire, dict)
        detail: Document = {
            "name": replica.name, "created": wire["created"], "state": wire["state"],
            "cluster": wire.get("cluster"), "applied": replica.stream.applied,
            "leads": replica.leading is not None,
        }  # fmt: skip
        if has_flag(query, "config"):
            detail["config"] = wire["config"]
        if has_flag(query, "raft") and len(replica.assignment.peers) > 1:
            group = detail["stream_raft_group"] = raft_group_name(replica)
            detail["consumer_raft_groups"] = [
                {"name": consumer.name, "raft_group": group} for consumer in replica.consumers()
            ]
        if has_flag(query, "consumers"):
            hidden = () if has_flag(query, "config") else ("config",)
            shown = detail["consumer_detail"] = []
            for consumer in list(replica.consumers()):
                if replica.leading is not None:
                    yield from replica.leading.counting(consumer.name)
                    pending = None
                else:
                    pending = yield from consumer.counting()
                if self.replicas.get(replica.group) is not replica:
                    break  # deleted meanwhile
                info = self.info.consumer(replica, consumer, shown=False, num_pending=pending)
                shown.append(_without(to_wire(info), *hidden))
                yield
        return detail


_STATS = (
    "memory", "storage", "reserved_memory", "reserved_storage", "accounts", "ha_assets", "api",
)  # fmt: skip


def varz_jetstream(document: Document, scans: Scans) -> Document:
    """What /varz shows of /jsz, and the bulk reads."""
    found = {"config": document["config"], "stats": {k: document[k] for k in _STATS}}
    if "meta_cluster" in document:
        found["meta"] = document["meta_cluster"]
    found["limits"] = document["limits"]
    found["scans"] = {
        "open": scans.admission.open,
        "total": scans.served,
        "refused": scans.refused,
        "sent_bytes": scans.bytes_sent,
    }
    return found


def _without(wire: object, *names: str) -> Document:
    assert isinstance(wire, dict)
    return {name: value for name, value in wire.items() if name not in names}


def _totals(replicas: list[Replica]) -> Steps[_Totals]:
    totals = _Totals()
    for position, replica in enumerate(replicas):
        totals.add(replica)
        if position % STEP_ITEMS == STEP_ITEMS - 1:
            yield
    return totals


def _or_unlimited(limit: int | None) -> int:
    return -1 if limit is None else limit
