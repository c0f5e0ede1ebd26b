"""JetStream on this node: the groups it is a member of, and the way to every other one.

Owns: the store, the Raft host, the meta group, this node's replicas, an outbox per stream, and
who leads what.
May not touch: how a stream applies an entry (broker.jetstream), sockets (the mesh and the server).
This is the one place where a committed Raft entry becomes a JetStream transition.
Spec: DESIGN sections 4-8."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from broker.cluster.consumer_requests.forwarding import (
    ForwardedAcks,
    ForwardedRequest,
    RequestForwarder,
)
from broker.cluster.limits.account_limits import AccountQuotas
from broker.cluster.meta.assignments import META_GROUP, Assignment, AssignmentTable
from broker.cluster.meta.founding import Candidate, Founders, Founding, next_session
from broker.cluster.meta.meta_group import MetaGroup, eventually
from broker.cluster.meta.meta_requests import MetaRequests
from broker.cluster.observe.advisories import Advisories
from broker.cluster.peers.channels import (
    CHANNEL_ACKS,
    CHANNEL_CONSUMER_REQUESTS,
    CHANNEL_LEADS,
)
from broker.cluster.peers.leader_table import NO_LEADER_WITHIN_S, LeaderTable
from broker.cluster.peers.mesh import Mesh
from broker.cluster.peers.no_peers import NoPeers
from broker.cluster.peers.rpc import CallFailed
from broker.cluster.publish.admission import Admission
from broker.cluster.publish.forwarding import AnswerForwarder, PublishForwarder
from broker.cluster.publish.outbox_table import OutboxTable
from broker.cluster.replica.leadership import Leadership
from broker.cluster.replica.membership import Membership
from broker.cluster.replica.replica import Replica
from broker.cluster.replica.state_flush import StateFlush
from broker.jetstream.delivery.pull_queue import LEADERSHIP_CHANGE, status
from broker.store.segments import BlockCache
from broker.store.state_db import StateDb
from raft import GroupId, NodeId, Term, node_id
from raft.host.host import Host
from raft.store.log_store import LogStore, StoreTuning
from raft.transport.transport import Peer, Transport

if TYPE_CHECKING:
    from broker.cluster.origins.origin_reader import OriginReader
    from broker.config.options import JetStreamOptions
    from broker.server.server import Server

logger = logging.getLogger("jetraft.cluster")

HAND_OVER_WITHIN_S = 1.0  # a stopping node waits so long for other leaders

_encode = msgspec.msgpack.Encoder().encode
_leads = msgspec.msgpack.Decoder(list[tuple[int, int]])
_candidate = msgspec.json.Decoder(Candidate)

Spawn = Callable[[Awaitable[None], str], object]


@dataclass(slots=True)
class JetStreamNode:
    server: Server
    mesh: Mesh
    options: JetStreamOptions
    expected_nodes: Callable[[], int]
    spawn: Spawn
    on_replica_leads: list[Callable[[Replica, bool], None]] = field(default_factory=list)
    on_reconfigured: list[Callable[[Replica], None]] = field(default_factory=list)  # of led ones
    replicas: dict[int, Replica] = field(default_factory=dict)
    block_cache: BlockCache = field(default_factory=BlockCache)  # decoded blocks of all streams
    directory: Path = Path()  # of the data, known once open
    session: int = 0  # of this run; numbers only rise over restarts
    formed: asyncio.Event = field(default_factory=asyncio.Event)
    store: LogStore = field(init=False)
    state_db: StateDb = field(init=False)
    host: Host = field(init=False)
    flushing: StateFlush = field(init=False)
    meta_group: MetaGroup = field(init=False)
    meta_calls: MetaRequests = field(init=False)
    formation: Founders = field(init=False)
    errands: RequestForwarder = field(init=False)
    advising: Advisories = field(init=False)
    tenancy: AccountQuotas = field(init=False)
    publishing: PublishForwarder = field(init=False)
    outboxes: OutboxTable = field(init=False)
    answers: AnswerForwarder = field(init=False)
    leaders: LeaderTable = field(init=False)
    membership: Membership = field(init=False)
    members: list[NodeId] = field(default_factory=list)
    followers: dict[int, dict[str, OriginReader]] = field(default_factory=dict)  # of led streams
    _names: dict[NodeId, str] = field(default_factory=dict)
    _watchers: dict[tuple[str, bytes], dict[Leadership, None]] = field(default_factory=dict)
    _epoch_ns: int = field(default_factory=lambda: time.time_ns() - time.monotonic_ns())

    @property
    def node(self) -> NodeId:
        return self.mesh.node

    @property
    def meta(self) -> AssignmentTable:
        return self.meta_group.meta

    # -- life -----------------------------------------------------------------------------------

    def open(self, directory: Path) -> None:
        """Open the store. Raises raft.StoreError with a sentence for the operator."""
        self.directory = directory
        self.store = LogStore.open(
            directory / "store", node_name=self.mesh.name, cluster_name=self.mesh.cluster,
            tuning=StoreTuning(flush_interval_s=self.options.flush_interval_s),
        )  # fmt: skip
        self.state_db = StateDb(self.store.db, write=self.store.write_state)
        self.store.attach(let_go=self.state_db.let_go, take=self.state_db.take)
        self.flushing = StateFlush(self)
        self.host = Host(
            node=self.node,
            store=self.store,
            transport=self.mesh.transport or cast(Transport, NoPeers()),
            on_recovered=self.flushing.start_over,
        )
        self.meta_group = MetaGroup(
            state_db=self.state_db,
            host=self.host,
            on_assigned=self._assigned,
            on_reconfigured=self._reconfigured,
            on_removed=self._removed,
            on_leader=lambda leader: self._leader_heard(META_GROUP, leader),
            on_written=self.flushing.wanted.set,
        )
        self.leaders = LeaderTable(self.mesh.connected, self._resend)
        self.meta_calls = MetaRequests(self.node, self.mesh.rpc, self.leaders, self.meta_group)
        self.errands = RequestForwarder(
            node=self.node,
            leader=self.leader,
            send=self.mesh.send,
            take=self._errand,
            take_acks=self._take_acks,
            before_send=self.mesh.interest.flush,
        )
        self.advising = Advisories(self)
        self.tenancy = AccountQuotas(self)
        self.session = next_session(directory / "session")
        self._build_publish_path()
        self.on_replica_leads.append(self.advising.of_leadership)
        self.membership = Membership(self)
        self.formation = Founders(
            path=directory / "founding.json",
            cluster=self.mesh.cluster,
            name=self.mesh.name,
            incarnation=str(self.store.identity.incarnation),
            expected=self.expected_nodes,
            on_formed=self._formed,
        )
        self.formation.load()

    def _build_publish_path(self) -> None:
        """Outbox -> forwarder -> replica, and the answers back."""
        self.publishing = PublishForwarder(
            self.node, self.mesh, leader=self.leader, replica=self.replicas.get
        )
        self.outboxes = OutboxTable(
            account=self.server.account,
            router=self.server.router,
            transmit=self.publishing.transmit,
            admission=Admission(
                node=self.node,
                disk=self.store,
                writer=self.host,
                leader=self.leader,
                replica=self.replicas.get,
                # Looked up each time: loading the meta group replaces its table.
                assignment=lambda account, name: self.meta.get(account, name),  # noqa: PLW0108
            ),
            session=self.session,
            domain=self.options.domain,
        )
        self.answers = AnswerForwarder(self.node, self.mesh, self.outboxes.answered)

    def start(self) -> None:
        mesh = self.mesh
        self.publishing.start()
        self.answers.start()
        mesh.register(CHANNEL_LEADS, self._received_leads)
        mesh.register(CHANNEL_CONSUMER_REQUESTS, self.errands.received)
        mesh.register(CHANNEL_ACKS, self.errands.received_acks)
        self.tenancy.start()
        self.membership.start()
        self.meta_calls.start()
        mesh.rpc.register("candidate", self._serve_candidate)
        mesh.on_peer(self._peer_changed)
        mesh.interest.on_change.append(self._interest_changed)
        self.spawn(self.host.run(), "raft host")
        self.spawn(self.flushing.run(), "state flush")
        self.spawn(self.flushing.run_erasures(), "erasing")
        self.spawn(self._wait_for_founders(), "founding")
        self.meta_group.load()
        self.formation.start()

    async def leave(self) -> None:
        """Until others lead what they can lead, for a bounded time."""
        self.hand_over()
        await eventually(self._leads_nothing_shared, timeout_s=HAND_OVER_WITHIN_S, every_s=0.01)

    async def stop(self) -> None:
        """After `leave`."""
        for replica in self.replicas.values():
            replica.close()
        self.meta_group.close()
        await self.host.stop()
        self.store.close()

    def _formed(self, founding: Founding) -> None:
        self.members = founding.voters()
        self._names = {node_id(name): name for name in founding.members}
        self.join_groups()
        self.formed.set()
        if len(self.members) > 1:
            logger.info("cluster founded by %s", ", ".join(sorted(founding.members)))

    def join_groups(self) -> None:
        """Every group this node is assigned to, and the meta group."""
        for assignment in self.meta:
            self._assigned(assignment)
        if any(self.node not in assignment.holders for assignment in self.meta):
            self.membership.sweep()
        self.host.add_group(
            META_GROUP, voters=self.members, machine=self.meta_group, applied=self.meta.applied
        )

    async def _wait_for_founders(self) -> None:
        """Until this node belongs to a cluster, ask its peers again and again who they are."""
        while not self.formed.is_set():
            for peer in self.mesh.peers():
                if peer.connected:
                    await self._ask_candidate(peer.node)
            self.formation.consider()
            await asyncio.sleep(0.05)

    async def _ask_candidate(self, peer: NodeId) -> None:
        try:
            answer = await self.mesh.rpc.call(peer, "candidate", b"", timeout_s=1.0)
        except CallFailed:
            return  # asked again, or it is gone
        self.formation.peer_seen(_candidate.decode(answer))

    async def _serve_candidate(self, _peer: NodeId, _body: bytes) -> bytes:
        return msgspec.json.encode(self.formation.candidate())

    # -- peers ----------------------------------------------------------------------------------

    def _peer_changed(self, peer: Peer, connected: bool) -> None:  # noqa: FBT001
        if not connected:
            self.formation.peer_lost(peer.name)
            self._pulls_lost(peer.node)
            return
        if self.formed.is_set():
            self.spawn(self._ask_candidate(peer.node), "founding check")
        led = [(r.group, r.term) for r in self.replicas.values() if r.leading is not None]
        if self.meta_group.is_leader:
            led.append((META_GROUP, self.host.status(META_GROUP).core.term))
        self.mesh.send(peer.node, CHANNEL_LEADS, _encode(led))
        self.outboxes.link_restored(lambda group: self.leader(group) == peer.node)

    # -- who leads ------------------------------------------------------------------------------

    def leader(self, group: int) -> NodeId | None:
        return self.leaders.leader(group)

    async def wait_leader(self, group: int, *, timeout_s: float = NO_LEADER_WITHIN_S) -> NodeId:
        """The group's leader, as soon as there is one. Raises CLUSTER_NOT_AVAIL."""
        return await self.leaders.wait(group, timeout_s=timeout_s)

    def note_leader(self, group: int, term: Term, leader: NodeId) -> None:
        self.leaders.note(group, term, leader)

    def leads(self, group: int, term: Term) -> None:
        """This node has become the leader of a group and is ready to serve it."""
        self.leaders.note(group, term, self.node, serving=True)
        self.mesh.broadcast(CHANNEL_LEADS, _encode([(group, term)]))

    def _leader_heard(self, group: int, leader: NodeId | None) -> None:
        if leader is not None:
            self.note_leader(group, self.host.status(GroupId(group)).core.term, leader)

    def _received_leads(self, peer: NodeId, frame: bytes) -> None:
        for group, term in _leads.decode(frame):
            self.leaders.note(group, Term(term), peer, serving=True)

    def _resend(self, group: int) -> None:
        """The group has another leader, or one that serves from now on."""
        self.outboxes.resend(group)
        self.errands.release(group)

    # -- assignments ----------------------------------------------------------------------------

    def _assigned(self, assignment: Assignment) -> None:
        self.membership.hold(assignment)
        self.outboxes.assigned(assignment)

    def _reconfigured(self, assignment: Assignment) -> None:
        self.outboxes.reconfigured(assignment)
        self.membership.hold(assignment)

    def _removed(self, assignment: Assignment) -> None:
        group = assignment.group
        self.outboxes.removed(assignment)
        replica = self.replicas.pop(group, None)
        if replica is not None:
            replica.delete()
        else:
            self.membership.removed(GroupId(group))
        self.tenancy.usage.forget(group)
        self.leaders.forget(group)
        self.errands.forget(group)

    # -- push consumers follow the interest in their deliver subjects ---------------------------

    def watch(self, account: str, subject: bytes, leading: Leadership) -> None:
        self._watchers.setdefault((account, subject), {})[leading] = None

    def unwatch(self, account: str, subject: bytes, leading: Leadership) -> None:
        watchers = self._watchers.get((account, subject))
        if watchers is not None:
            watchers.pop(leading, None)
            if not watchers:
                del self._watchers[account, subject]

    def _interest_changed(self, account: str, subject: bytes) -> None:
        for leading in list(self._watchers.get((account, subject), ())):
            leading.interest_changed(subject)

    def member_name(self, node: NodeId) -> str:
        return self._names.get(node, "") or self.mesh.peer_name(node)

    def client_address(self, node: NodeId) -> str:
        """host:port where clients reach the node, as it told its peers; "" when unknown."""
        if node == self.node:
            return str(self.mesh.hello.get("client", ""))
        for peer in self.mesh.peers():
            if peer.node == node:
                return str(peer.hello.get("client", ""))
        return ""

    def hand_over(self) -> None:
        """Lame duck: give every leadership to a living peer."""
        for replica in self.replicas.values():
            living = replica.heirs()
            if replica.leading is not None and living:
                self.host.transfer(replica.group, living[0])
        living = [peer for peer in self.members if peer != self.node and self.mesh.connected(peer)]
        if self.meta_group.is_leader and living:
            self.host.transfer(META_GROUP, living[0])

    def _leads_nothing_shared(self) -> bool:
        """Whether every group with living other members has another leader."""
        others = any(self.mesh.connected(m) for m in self.members if m != self.node)
        shared = any(r.leading is not None and r.heirs() for r in self.replicas.values())
        return not others or not (shared or self.meta_group.is_leader)

    def now_ns(self) -> int:
        """Wall time that does not step back: read once, then advanced by the monotonic clock."""
        return self._epoch_ns + time.monotonic_ns()

    # -- errands   ------------------------------------------------------------------------------

    def _errand(self, errand: ForwardedRequest) -> None:
        replica = self.replicas.get(errand[0])
        if replica is None:
            return
        if replica.leading is not None:
            replica.leading.errand(errand)
        elif replica.elected:
            self.errands.hold(errand)

    def _take_acks(self, acks: ForwardedAcks) -> None:
        replica = self.replicas.get(acks[0])
        if replica is None:
            return
        if replica.leading is not None:
            replica.leading.acks(acks)
        elif replica.elected:
            self.errands.hold_acks(acks)

    def _pulls_lost(self, node: NodeId) -> None:
        """Whoever waited at a leader there is told, as the leader itself would have done."""
        for group, reply in self.errands.lost_pulls(node):
            account = self.outboxes.account_of(group)
            if account is not None:
                header = status(LEADERSHIP_CHANGE)
                self.server.router.publish(account, reply, b"", header, b"")
