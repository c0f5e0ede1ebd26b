"""RAFTZ: the Raft groups of this node, by account.

Owns: the document.
May not touch: groups beyond reading their status.
Spec: nats-server system account, $SYS.REQ.SERVER.<id>.RAFTZ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.cluster.meta.assignments import META_GROUP
from broker.cluster.meta.members import ClusterMembers
from broker.cluster.replica.replica_table import ReplicaTable
from broker.jetstream.config.names import get_hash
from broker.server.services import Document, Query
from broker.subjects import Steps
from raft import GroupId, NodeId
from raft.host.group import GroupStatus

META_NAME = "_meta_"


@dataclass(slots=True)
class RaftGroups:
    system_account: str
    members: ClusterMembers
    replicas: ReplicaTable
    holds: Callable[[GroupId], bool]
    status: Callable[[GroupId], GroupStatus]
    silent_ns: Callable[[NodeId], int]

    def document(self, query: Query) -> Steps[Document]:
        """Groups of the account and of the name asked for; without either, the meta group."""
        system = self.system_account
        account, wanted = query.get("acc") or system, query.get("group")
        held: dict[str, GroupId] = {}
        if account == system and self.members.founded.is_set():
            held[META_NAME] = META_GROUP
        for replica in self.replicas:
            if replica.assignment.account == account:
                held[f"S-R{len(replica.assignment.peers)}F-{replica.group}"] = replica.group
        groups = {}
        for name, group in sorted(held.items()):
            if wanted in (None, "", name) and self.holds(group):
                groups[name] = self._group(group)
                yield
        return {account: groups} if groups else {}

    def _group(self, group: GroupId) -> Document:
        status = self.status(group)
        core = status.core
        document: Document = {
            "id": self._id(self.members.node),
            "state": core.role.name,
            "size": len(core.voters),
            "quorum_needed": len(core.voters) // 2 + 1,
            "committed": core.commit,
            "applied": core.applied,
            "ever_had_leader": core.leader is not None,
            "term": core.term,
            "pindex": core.last_index,
            "wal": {
                "messages": max(core.last_index - core.first_index + 1, 0),
                "bytes": status.log_bytes,
                "first_seq": core.first_index,
                "last_seq": core.last_index,
            },
            "peers": {
                self._id(peer): self._peer(peer)
                for peer in core.voters
                if peer != self.members.node
            },
        }
        if core.leader is not None:
            document["leader"] = self._id(core.leader)
        if core.vote:
            document["voted_for"] = self._id(core.vote)
        return document

    def _peer(self, peer: NodeId) -> Document:
        document: Document = {"name": self.members.name(peer), "known": True}
        if silent_ns := self.silent_ns(peer):
            document["last_seen"] = f"{silent_ns / 1e6:.6f}ms"
        return document

    def _id(self, member: NodeId) -> str:
        return get_hash(self.members.name(member))
