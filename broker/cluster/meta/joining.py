"""Joining: a node that is not one of the founders is added to the table of nodes.

Owns: the call by which a new node asks to join, on both sides, and the reasons to refuse it. Any
member forwards the call to the leader of the meta group.
May not touch: the founding record (founding.py), who votes (meta_voters.py).
Spec: docs/decisions/0015-nodes-come-and-go.md."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.cluster.meta.assignments import META_GROUP
from broker.cluster.meta.feature_level import NEWEST_LEVEL
from broker.cluster.meta.meta_group import MetaGroup
from broker.cluster.meta.node_table import AddNode, NodeTable
from broker.cluster.peers.leader_table import LeaderTable
from broker.cluster.peers.rpc import CallRefused, Rpc
from broker.cluster.proposals import LostLeadership
from broker.jetstream.errors import JetStreamError
from raft import NodeId, RaftError

logger = logging.getLogger("jetraft.cluster")

JOIN_WITHIN_S: Final = 5.0


class JoinRequest(msgspec.Struct, frozen=True):
    name: str
    node: int
    feature_level: int = 0


class JoinAnswer(msgspec.Struct, frozen=True):
    refused: str = ""


_encode = msgspec.msgpack.Encoder().encode
_request = msgspec.msgpack.Decoder(JoinRequest)
_answer = msgspec.msgpack.Decoder(JoinAnswer)


def refusal(
    request: JoinRequest, nodes: NodeTable, level: int, *, connected: Callable[[NodeId], bool]
) -> str | None:
    """Why the node may not join; None: it may. Pure."""
    if request.feature_level < level:
        return (
            f'"{request.name}" has feature level {request.feature_level}, the cluster has '
            f"{level}: start a newer version of JetRaft there"
        )
    if nodes.is_removed(request.node):
        return (
            f'this data directory of "{request.name}" was removed from the cluster: clear its '
            "store directory to join with a new one"
        )
    present = nodes.named(request.name)
    if present is not None and present.node != request.node and connected(NodeId(present.node)):
        return f'another server has the name "{request.name}"'
    return None


@dataclass(slots=True)
class Joining:
    node: NodeId
    name: str
    rpc: Rpc
    leaders: LeaderTable
    group: MetaGroup
    connected: Callable[[NodeId], bool]
    now_ns: Callable[[], int]

    def start(self) -> None:
        self.rpc.register("join", self._serve)

    async def ask(self, peer: NodeId) -> str | None:
        """Ask to join, through this peer. Returns the reason of a refusal; None: this node is in
        the table. Raises CallFailed."""
        body = _encode(JoinRequest(self.name, self.node, NEWEST_LEVEL))
        answer = await self.rpc.call(peer, "join", body, timeout_s=JOIN_WITHIN_S)
        return _answer.decode(answer).refused or None

    async def _serve(self, peer: NodeId, body: bytes) -> bytes:
        if not self.group.is_leader:
            leader = self.leaders.leader(META_GROUP)
            if leader is None or leader in (self.node, peer):
                raise CallRefused("no meta leader is known")
            return await self.rpc.call(leader, "join", body, timeout_s=JOIN_WITHIN_S)
        if not self.group.knows_all:
            raise CallRefused("the meta leader is not ready")
        request = _request.decode(body)
        table = self.group.assignments
        refused = refusal(request, table.nodes, table.level, connected=self.connected)
        if refused is None:
            refused = await self._add(request)
        return _encode(JoinAnswer(refused or ""))

    async def _add(self, request: JoinRequest) -> str | None:
        former = self.group.assignments.nodes.named(request.name)
        try:
            result = await self.group.propose(AddNode(request.node, request.name, self.now_ns()))
        except (RaftError, LostLeadership) as error:
            raise CallRefused(str(error) or "leadership lost") from error
        if isinstance(result, JetStreamError):
            return result.description
        if former is not None and former.node != request.node:
            logger.warning(
                "node %s has returned with another data directory: its replicas are rebuilt there",
                request.name,
            )
        elif former is None:
            logger.info("node %s joins the cluster", request.name)
        return None
