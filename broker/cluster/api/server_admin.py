"""Operations on the servers of the cluster: remove, drain, the meta leader, the status of all.

Owns: the checks before a change of the table of nodes, and the transfer of the meta leadership.
May not touch: what follows from a change (broker.cluster.meta: repair.py, meta_voters.py).
Spec: docs/decisions/0015-nodes-come-and-go.md; errors 10003, 10005, 10008, 10044 and 10202."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from broker.cluster.meta.assignments import META_GROUP
from broker.cluster.meta.members import ClusterMembers
from broker.cluster.meta.meta_group import MetaGroup
from broker.cluster.meta.meta_requests import MetaRequests
from broker.cluster.meta.node_table import NodeRecord, SetStanding, Standing
from broker.cluster.meta.placement import PlacementView, choose_peers
from broker.cluster.peers.leader_table import LeaderTable
from broker.cluster.peers.rpc import CallRefused, Rpc
from broker.jetstream.api.info import ClusterStatus, ServerStatus
from broker.jetstream.api.requests import ServerPeerRequest
from broker.jetstream.config.names import get_hash
from broker.jetstream.config.stream_config import Placement
from broker.jetstream.errors import ErrCode, JetStreamError
from raft import NodeId, RaftError

_encode = msgspec.msgpack.Encoder().encode
_target = msgspec.msgpack.Decoder(int)


@dataclass(slots=True)
class ServerAdmin:
    """One per node; raises the JetStreamError to answer with."""

    cluster: str
    members: ClusterMembers
    group: MetaGroup
    meta_requests: MetaRequests
    leaders: LeaderTable
    rpc: Rpc
    connected: Callable[[NodeId], bool]
    placement: Callable[[], PlacementView]

    def start(self) -> None:
        self.rpc.register("meta transfer", self._serve_transfer)

    # -- servers --------------------------------------------------------------------------------

    async def remove(self, body: ServerPeerRequest) -> None:
        record = self._named(body)
        if record.standing is Standing.LEAVING:
            return
        others = [n for n in self.members.nodes if n != record.node]
        up = sum(map(self.connected, others))
        if 2 * up <= len(others):
            raise JetStreamError(
                ErrCode.CLUSTER_NOT_AVAIL,
                f"without {record.name} {len(others)} nodes are left, {up} of them connected: "
                "no quorum",
            )
        await self._set(record, Standing.LEAVING)

    async def drain(self, body: ServerPeerRequest) -> None:
        record = self._named(body)
        if record.standing is Standing.MEMBER:
            await self._set(record, Standing.DRAINING)

    async def undo_drain(self, body: ServerPeerRequest) -> None:
        """Also cancels a removal that is not finished."""
        record = self._named(body)
        if record.standing is not Standing.MEMBER:
            await self._set(record, Standing.MEMBER)

    def _named(self, body: ServerPeerRequest) -> NodeRecord:
        if not body.peer and not body.peer_id:
            raise JetStreamError(ErrCode.BAD_REQUEST)
        for record in self.group.assignments.nodes.present():
            if body.peer_id and body.peer_id == get_hash(record.name):
                return record
            if not body.peer_id and body.peer == record.name:
                return record
        raise JetStreamError(ErrCode.CLUSTER_SERVER_NOT_MEMBER)

    async def _set(self, record: NodeRecord, standing: Standing) -> None:
        await self.meta_requests.change_node(
            SetStanding(record.node, standing, self.meta_requests.now_ns())
        )

    def status(self) -> ClusterStatus:
        leader = self.leaders.leader(META_GROUP)
        led: dict[NodeId, int] = {}
        for one in self.group.assignments:
            leading = self.leaders.leader(one.group)
            if leading is not None:
                led[leading] = led.get(leading, 0) + 1
        servers = [
            ServerStatus(
                name=record.name,
                peer=get_hash(record.name),
                state=record.standing.value,
                connected=self.connected(NodeId(record.node)),
                meta_leader=record.node == leader,
                replicas=self.group.assignments.load(NodeId(record.node)),
                leaders=led.get(NodeId(record.node), 0),
                since=record.since_ns,
            )
            for record in self.group.assignments.nodes.present()
        ]
        moving = sum(set(one.peers) != set(one.members) for one in self.group.assignments)
        return ClusterStatus(
            cluster=self.cluster,
            meta_leader=self.members.name(leader) if leader is not None else "",
            streams=len(self.group.assignments),
            moving=moving,
            feature_level=self.group.assignments.level,
            servers=tuple(sorted(servers, key=lambda server: server.name)),
        )

    # -- the meta leader ------------------------------------------------------------------------

    async def step_down(self, placement: Placement | None) -> None:
        """Transfer the leadership of the meta group, to a server with this name or these tags."""
        leader = await self.leaders.wait(META_GROUP)
        to = self._successor(leader, placement or Placement())
        await self.rpc.call(leader, "meta transfer", _encode(int(to)))

    def _successor(self, leader: NodeId, placement: Placement) -> NodeId:
        if preferred := placement.preferred:
            wanted = self.members.named(preferred)
            if wanted is None or wanted == leader:
                problem = "not known" if wanted is None else "is already leader"
                raise JetStreamError.of(
                    ErrCode.CLUSTER_NO_PEERS, err=f'preferred server "{preferred}" {problem}'
                )
            return wanted
        view = self.placement()
        others = [node for node in self.members.nodes if node != leader]
        found = choose_peers(
            PlacementView(others, view.alive, view.load, view.cluster, view.tags),
            name="meta",
            replicas=1,
            placement=placement,
        )
        if not isinstance(found, list):
            raise JetStreamError.of(ErrCode.CLUSTER_NO_PEERS, err="no replacement peer connected")
        return found[0]

    async def _serve_transfer(self, _peer: NodeId, body: bytes) -> bytes:
        try:
            self.group.host.transfer(META_GROUP, NodeId(_target.decode(body)))
        except RaftError as error:
            raise CallRefused(str(error)) from error
        return b""
