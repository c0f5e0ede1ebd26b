"""Cluster membership, assembled: founding, joining, voting, repair, leader balance.

Owns: building and starting these parts, and reacting to changes of this node's own membership.
May not touch: how any of them works; the streams of this node (stream_node.py)."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from broker.cluster.limits.stored_bytes import StoredBytes
from broker.cluster.meta.feature_level import NEWEST_LEVEL, LevelRaiser
from broker.cluster.meta.founding import Bootstrap, Founding, FoundingCalls
from broker.cluster.meta.joining import Joining
from broker.cluster.meta.leader_balance import LeaderBalance
from broker.cluster.meta.members import ClusterMembers
from broker.cluster.meta.meta_group import MetaGroup
from broker.cluster.meta.meta_requests import MetaRequests
from broker.cluster.meta.meta_voters import MetaVoters
from broker.cluster.meta.node_table import Standing
from broker.cluster.meta.placement import PlacementView, node_loads
from broker.cluster.meta.repair import Repair
from broker.cluster.node_files import NodeFiles
from broker.cluster.peers.hub_speaker import HubSpeaker
from broker.cluster.peers.leader_table import LeaderTable
from broker.cluster.peers.mesh import Mesh
from broker.cluster.peers.rpc import CallFailed
from broker.config.options import JetStreamOptions
from broker.jetstream.errors import JetStreamError
from broker.server.leaf.leaf_nodes import LeafNodes
from raft import NodeId, RaftError

logger = logging.getLogger("jetraft.cluster")

LEARN_EVERY_S = 0.05


class AdvertisedServer(Protocol):
    """The server, as far as its URLs are advertised to clients."""

    lame_duck: bool
    leafs: LeafNodes

    def client_urls(self) -> list[str]: ...
    def ws_urls(self) -> list[str]: ...
    def leave_urls(self) -> None: ...


@dataclass(slots=True)
class ClusterNodes:
    """Part of StreamNode."""

    server: AdvertisedServer
    mesh: Mesh
    options: JetStreamOptions
    files: NodeFiles
    incarnation: str
    members: ClusterMembers
    leaders: LeaderTable
    meta_group: MetaGroup
    meta_requests: MetaRequests
    stored: StoredBytes
    now_ns: Callable[[], int]
    yields: Callable[[NodeId], bool]  # a node whose clock is wrong takes no leadership
    expected_nodes: Callable[[], Collection[NodeId] | None]
    join_groups: Callable[[Founding], bool]  # returns whether a stream table is known
    leave_groups: Callable[[], None]  # called when this node was removed from the cluster
    spawn: Callable[[Awaitable[None], str], object]
    bootstrap: Bootstrap = field(init=False)
    founding: FoundingCalls = field(init=False)
    joining: Joining = field(init=False)
    balance: LeaderBalance = field(init=False)
    repair: Repair = field(init=False)
    _loads: int = 0  # how often the table was read from disk

    def __post_init__(self) -> None:
        mesh = self.mesh
        highest = self.options.feature_level
        mesh.tell(feature_level=NEWEST_LEVEL if highest is None else min(highest, NEWEST_LEVEL))
        self.bootstrap = Bootstrap(
            files=self.files,
            cluster=mesh.cluster,
            name=mesh.name,
            incarnation=self.incarnation,
            expected=self.expected_nodes,
            on_formed=self._founded,
            node=mesh.node,
        )
        self.bootstrap.load()
        if self.bootstrap.founding is not None:
            mesh.tell(founding=self.bootstrap.founding.digest())
        self.joining = Joining(
            node=mesh.node,
            name=mesh.name,
            rpc=mesh.rpc,
            leaders=self.leaders,
            group=self.meta_group,
            connected=mesh.connected,
            now_ns=self.now_ns,
        )
        self.founding = FoundingCalls(
            bootstrap=self.bootstrap,
            members=self.members,
            rpc=mesh.rpc,
            peers=mesh.peers,
            join=self.joining.ask,
            on_removed=self._expelled,
            spawn=self.spawn,
        )
        self.balance = LeaderBalance(
            self.meta_group,
            self.leaders,
            mesh.rpc,
            lambda node: mesh.connected(node) and not self.yields(node),
        )
        self.repair = Repair(
            group=self.meta_group,
            view=self.placement,
            now_ns=self.now_ns,
            gone_after_s=self.options.replace_after_ns / 1e9 or math.inf,
            name=self.members.name,
        )

    def start(self) -> None:
        self.joining.start()
        self.balance.start()
        self.mesh.on_peer(self.founding.peer_changed)
        if self.mesh.options is not None:
            self._speak_to_hubs()
        voters = MetaVoters(
            self.meta_group,
            self.meta_group.assignments.nodes,
            self.mesh.connected,
            self.members.name,
        )
        levels = LevelRaiser(self.meta_group, self.meta_group.assignments, self.mesh)
        self.spawn(voters.run(), "meta voters")
        self.spawn(self.stored.run(), "stored bytes")
        self.spawn(levels.run(), "feature level")
        self.spawn(self.repair.run(), "repair")
        self.spawn(self.balance.run(), "leader balance")
        self.founding.start()

    def _speak_to_hubs(self) -> None:
        speaker = HubSpeaker(self.mesh, lambda: self.members.nodes)
        self.server.leafs.observers.append(speaker)
        self.mesh.on_peer(speaker.peer_changed)
        self.members.on_change.append(speaker.review)

    def placement(self) -> PlacementView:
        members = self.members.placeable
        loads = node_loads(members, self.meta_group.assignments.load, self.stored.of)
        return PlacementView(
            members=members,
            alive=self.mesh.connected,
            load=lambda node: loads.get(node, 0.0),
            cluster=self.mesh.cluster,
            tags=self.mesh.tags,
            unique_tag=self.options.unique_tag,
        )

    def table_loaded(self) -> Founding | None:
        """The stream table was read from disk. None: this node belongs to no cluster."""
        founding = self.bootstrap.founding
        if founding is None or self.members.removed:
            return None
        self.meta_group.assignments.nodes.found(founding.names())
        self.members.refresh()
        return founding

    def changed(self) -> None:
        """The table of nodes has changed."""
        self.members.refresh()
        if self.members.standing(self.mesh.node) is Standing.REMOVED:
            # Not from inside the group that is to be closed.
            asyncio.get_running_loop().call_soon(self._expelled)

    # -- this node ------------------------------------------------------------------------------

    def _founded(self, founding: Founding) -> None:
        self.mesh.tell(founding=founding.digest())
        self.table_loaded()
        self.enter(founding)
        if self.members.founded.is_set() and self.members.clustered:
            logger.info("cluster founded by %s", ", ".join(sorted(founding.members)))

    def enter(self, founding: Founding) -> None:
        """Join the groups, with the table as it was read from disk. Clients are admitted
        immediately, unless this node has just joined or has given up its table: then it knows no
        streams yet."""
        self._loads += 1
        self.members.learned.clear()
        if self.join_groups(founding) and self.mesh.node in self.members.nodes:
            self._belongs()
        else:
            self.members.founded.clear()
        self.spawn(self._learn_table(self._loads), "learn the stream table")

    async def _learn_table(self, load: int) -> None:
        """Wait until the stream table of this node, which is outdated or empty, is current. Until
        then the node must not answer that a stream does not exist."""
        while load == self._loads:
            try:
                await self.meta_requests.barrier()
                if load == self._loads and self.mesh.node in self.members.nodes:
                    self._learned()
                    return
            except (CallFailed, RaftError, TimeoutError, JetStreamError) as error:
                logger.debug("the stream table is not known yet: %s", error)
            await asyncio.sleep(LEARN_EVERY_S)

    def _learned(self) -> None:
        self.members.learned.set()
        if not self.members.founded.is_set():
            self._belongs()
            names = sorted(self.members.name(node) for node in self.members.nodes)
            logger.info("joined the cluster of %s", ", ".join(names))
        if self.members.clustered:
            logger.info("JetStream is ready")

    def _belongs(self) -> None:
        """This node is a member and knows the streams: advertise it to clients."""
        self.members.founded.set()
        if not self.server.lame_duck:
            self.mesh.tell(urls=self.server.client_urls(), ws_urls=self.server.ws_urls())

    def _expelled(self) -> None:
        """This incarnation was removed from the cluster. It holds no replicas any more, and sends
        its clients elsewhere. Its data stays on disk."""
        if self.members.removed:
            return
        self.members.removed = True
        self.members.founded.clear()
        self._loads += 1  # ends `_learn_table`
        logger.error(
            "this node was removed from the cluster: it holds no streams and refuses JetStream "
            "requests. To let it join again, stop it and clear its store directory"
        )
        self.mesh.tell(urls=[], ws_urls=[], leaf_urls=[])
        self.server.leave_urls()
        self.leave_groups()
