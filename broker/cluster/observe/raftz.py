"""RAFTZ: the Raft groups of this node, by account.

Owns: the document.
May not touch: groups beyond asking for their status.
Spec: core contract 9.2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.meta.assignments import META_GROUP
from broker.jetstream.config.names import get_hash
from broker.server.services import Document, Query
from raft import GroupId, NodeId

if TYPE_CHECKING:
    from broker.cluster.node import JetStreamNode

META_NAME = "_meta_"


def raftz(node: JetStreamNode, query: Query) -> Document:
    """Groups of the account and of the name asked for; without either, the meta group."""
    system = node.server.options.system_account
    account, wanted = query.get("acc") or system, query.get("group")
    held: dict[str, GroupId] = {}
    if account == system and node.formed.is_set():
        held[META_NAME] = META_GROUP
    for replica in node.replicas.values():
        if replica.assignment.account == account:
            held[f"S-R{len(replica.assignment.peers)}F-{replica.group}"] = replica.group
    groups = {
        name: _group(node, group)
        for name, group in sorted(held.items())
        if wanted in (None, "", name)
    }
    return {account: groups} if groups else {}


def _group(node: JetStreamNode, group: GroupId) -> Document:
    status = node.host.status(group)
    core = status.core
    document: Document = {
        "id": _id(node, node.node),
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
        "peers": {_id(node, peer): _peer(node, peer) for peer in core.voters if peer != node.node},
    }
    if core.leader is not None:
        document["leader"] = _id(node, core.leader)
    if core.vote:
        document["voted_for"] = _id(node, core.vote)
    return document


def _peer(node: JetStreamNode, peer: NodeId) -> Document:
    document: Document = {"name": node.member_name(peer), "known": True}
    if silent_ns := node.mesh.silent_ns(peer):
        document["last_seen"] = f"{silent_ns / 1e6:.6f}ms"
    return document


def _id(node: JetStreamNode, member: NodeId) -> str:
    return get_hash(node.member_name(member))
