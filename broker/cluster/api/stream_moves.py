"""Moving the replicas of one stream by request: away from a server, to other servers, or back.

Owns: STREAM.PEER.REMOVE, STREAM.PEER.EVACUATE, STREAM.CANCEL_MOVE and their forms for the system
account.
May not touch: how replicas move (replica/member_changes.py). A replica stays until its replacement
has caught up, so removing and evacuating are the same.
Spec: NATS JetStream API; errors 10005, 10040, 10059, 10075 and 10129."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.cluster.meta.assignments import Assignment, AssignmentTable, MoveReplicas
from broker.cluster.meta.members import ClusterMembers
from broker.cluster.meta.meta_requests import MetaRequests
from broker.cluster.meta.placement import NoPlacement, PlacementView, choose_peers
from broker.jetstream.api.requests import StreamMoveRequest
from broker.jetstream.config.names import get_hash
from broker.jetstream.config.stream_config import Placement
from broker.jetstream.errors import ErrCode, JetStreamError
from raft import NodeId


@dataclass(slots=True)
class StreamMoves:
    """One per node; answers at the node that received the request. Raises the JetStreamError to
    answer with."""

    assignments: AssignmentTable
    members: ClusterMembers
    meta_requests: MetaRequests
    placement: Callable[[], PlacementView]

    def require_cluster(self) -> None:
        if not self.members.clustered:
            raise JetStreamError(ErrCode.CLUSTER_REQUIRED)

    async def remove_peer(self, account: str, stream: str, peer: str) -> None:
        """`peer`: a server name, or its hash."""
        self.require_cluster()
        if not peer:
            raise JetStreamError(ErrCode.BAD_REQUEST)
        known = self._known(account, stream)
        leaving = [
            node
            for node in map(NodeId, known.peers)
            if peer in (self.members.name(node), get_hash(self.members.name(node)))
        ]
        if not leaving:
            raise JetStreamError(ErrCode.CLUSTER_PEER_NOT_MEMBER)
        keep = [NodeId(node) for node in known.peers if node not in leaving]
        chosen = self._choose(known, keep, without=leaving)
        if isinstance(chosen, NoPlacement):
            raise JetStreamError(ErrCode.PEER_REMAP)
        await self._move(known, chosen)

    async def cancel(self, account: str, stream: str) -> Assignment:
        """Cancel a move: the wanted peers become the current voters again."""
        known = self._known(account, stream)
        if set(known.peers) == set(known.members):
            raise JetStreamError(ErrCode.STREAM_RECONFIGURE_NOT_IN_PROGRESS)
        return await self._move(known, [NodeId(node) for node in known.members])

    async def move(self, account: str, stream: str, body: StreamMoveRequest) -> Assignment:
        """Move the stream away from one server, or from all of them to servers with other tags."""
        known = self._known(account, stream)
        leaving = [NodeId(peer) for peer in known.peers]
        if body.server:
            leaving = [node for node in leaving if self.members.name(node) == body.server]
            if not leaving:
                raise JetStreamError(ErrCode.CLUSTER_PEER_NOT_MEMBER)
        keep = [NodeId(node) for node in known.peers if node not in leaving]
        chosen = self._choose(known, keep, without=leaving, tags=body.tags, cluster=body.cluster)
        if isinstance(chosen, NoPlacement):
            raise JetStreamError.of(ErrCode.CLUSTER_NO_PEERS, err=str(chosen))
        return await self._move(known, chosen)

    def _known(self, account: str, stream: str) -> Assignment:
        known = self.assignments.get(account, stream)
        if known is None:
            raise JetStreamError(ErrCode.STREAM_NOT_FOUND)
        return known

    def _choose(
        self,
        known: Assignment,
        keep: Sequence[NodeId],
        *,
        without: Sequence[NodeId],
        tags: tuple[str, ...] = (),
        cluster: str = "",
    ) -> list[NodeId] | NoPlacement:
        view = self.placement()
        others = [node for node in view.members if node not in without]
        placement = Placement(cluster, tags) if tags or cluster else known.config.placement
        return choose_peers(
            PlacementView(others, view.alive, view.load, view.cluster, view.tags, view.unique_tag),
            name=known.name,
            replicas=known.config.num_replicas,
            keep=keep,
            placement=placement,
        )

    async def _move(self, known: Assignment, peers: Sequence[NodeId]) -> Assignment:
        return await self.meta_requests.change(
            MoveReplicas(
                known.account,
                known.name,
                known.group,
                known.peers,
                [int(peer) for peer in peers],
                self.meta_requests.now_ns(),
            )
        )
