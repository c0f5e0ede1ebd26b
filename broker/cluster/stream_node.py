"""The streams of this node, assembled: storage, Raft groups, replicas, publishing.

Owns: building and wiring these parts, who is notified of what, the order of start and stop.
May not touch: how any of them works. The API and monitoring are built on top, in assembly.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from broker.cluster.clock_watch import ClockWatch
from broker.cluster.cluster_nodes import ClusterNodes
from broker.cluster.consumer_requests.forwarding import RequestForwarder
from broker.cluster.limits.account_limits import AccountQuotas
from broker.cluster.limits.full_disks import FullDisks
from broker.cluster.limits.stored_bytes import StoredBytes
from broker.cluster.limits.usage import Usage
from broker.cluster.meta.assignments import META_GROUP, Assignment, AssignmentTable
from broker.cluster.meta.feature_level import BLOCK_FILES, TooNew
from broker.cluster.meta.founding import Founding, next_session
from broker.cluster.meta.members import ClusterMembers
from broker.cluster.meta.meta_group import MetaGroup
from broker.cluster.meta.meta_requests import MetaRequests
from broker.cluster.meta.stored_table import StoredTable
from broker.cluster.observe.advisories import Advisories
from broker.cluster.observe.asset_info import AssetInfo
from broker.cluster.origins.mirroring import MirrorsAndSources
from broker.cluster.origins.origin_reader import OriginAccess
from broker.cluster.peers.channels import CHANNEL_ACKS, CHANNEL_CONSUMER_REQUESTS, CHANNEL_USAGE
from broker.cluster.peers.leader_announcements import LeaderAnnouncements
from broker.cluster.peers.leader_table import LeaderTable
from broker.cluster.peers.mesh import Mesh
from broker.cluster.peers.no_peers import NoPeers
from broker.cluster.platform import Platform
from broker.cluster.publish.admission import Admission
from broker.cluster.publish.forwarding import AnswerForwarder, PublishForwarder
from broker.cluster.publish.late_replies import LateReplies
from broker.cluster.publish.outbox_table import OutboxTable
from broker.cluster.publish.outbox_turns import OutboxTurns
from broker.cluster.replica.hand_over import HandOver
from broker.cluster.replica.leadership import DeliveryServices
from broker.cluster.replica.member_changes import MemberChanges
from broker.cluster.replica.membership import Membership
from broker.cluster.replica.push_interest import PushInterest, exporters
from broker.cluster.replica.replica import Replica, ReplicaServices
from broker.cluster.replica.replica_storage import ReplicaStorage
from broker.cluster.replica.replica_table import ReplicaTable
from broker.cluster.replica.request_receiver import RequestReceiver
from broker.cluster.replica.state_flush import StateFlush
from broker.cluster.scrub import Scrub, Scrubbed
from broker.config.options import JetStreamOptions
from broker.jetstream.config import Storage
from broker.server.services import StartFailed
from raft import GroupId, NodeId, Term
from raft.clock.cluster_clock import ClusterClock
from raft.host.host import Host
from raft.transport.transport import Peer, Transport

if TYPE_CHECKING:
    from broker.server.server import Server

logger = logging.getLogger("jetraft.cluster")

Spawn = Callable[[Awaitable[None], str], object]


class StreamNode:
    """Only assembly.py knows it."""

    def __init__(
        self,
        server: Server,
        mesh: Mesh,
        options: JetStreamOptions,
        *,
        directory: Path,
        storage: ReplicaStorage,
        expected_nodes: Callable[[], Collection[NodeId] | None],
        spawn: Spawn,
        platform: Platform,
    ) -> None:
        """`storage` is opened before the mesh is built, because it contains the id of this node."""
        self.server = server
        self.mesh = mesh
        self.options = options
        self.directory = directory
        self.spawn = spawn
        self.files = platform.files(directory)
        self.storage = storage
        self._table_lost = False
        transport = mesh.transport or cast(Transport, NoPeers())
        self.clock = ClusterClock(
            mesh.node,
            links=transport,
            members=lambda: [node for node in self.members.nodes if mesh.tells_clock(node)],
        )
        self.now_ns = self.clock.now_ns
        self.host = Host(
            node=mesh.node,
            store=self.storage.store,
            transport=transport,
            on_failure=lambda _: self.storage.failed(server.restart, rebuilt=mesh.has_routes),
            on_recovered=self._disk_recovered,
            flush_thread=platform.flush_thread,
            later=lambda group, act: self.outboxes.in_turn(group.id, act),
            compaction=platform.compaction,
            clock=self.clock,
        )
        self.leaders = LeaderTable(mesh.connected, self._leader_changed)
        self.assignments = AssignmentTable()
        self.members = ClusterMembers(mesh.node, self.assignments.nodes, mesh.peer_name)
        self.replicas = ReplicaTable(self.assignments, self._open_replica)
        self._build_meta()
        self._build_nodes(expected_nodes)
        self._build_publishing()
        self._build_observers()
        self._build_replicas()

    # -- building -------------------------------------------------------------------------------

    def _build_meta(self) -> None:
        mesh, storage = self.mesh, self.storage
        self.meta_group = MetaGroup(
            assignments=self.assignments,
            stored=StoredTable(self.assignments, storage.state_db),
            host=self.host,
            on_assigned=self._assigned,
            on_reconfigured=self._reconfigured,
            on_removed=self._removed,
            on_leader=self._meta_leader_changed,
            on_nodes=lambda: self.nodes.changed(),  # noqa: PLW0108 - built later
            on_written=lambda: self.flush.want(),  # noqa: PLW0108 - built later
            on_flushed=lambda index: self.membership.table_flushed(index),  # noqa: PLW0108
        )
        self.meta_requests = MetaRequests(
            mesh.node, mesh.rpc, self.leaders, self.meta_group, mesh.feature_level, self.now_ns
        )
        self.flush = StateFlush(
            files=self.files,
            store=storage.store,
            host=self.host,
            meta_group=self.meta_group,
            replicas=self.replicas,
            block_moves=storage.block_moves,
        )
        storage.state_db.in_files = lambda: self.assignments.level >= BLOCK_FILES
        self.hand_over = HandOver(
            self.replicas, self.meta_group, self.members, mesh.connected, self.clock.is_wrong
        )
        self.clock_watch = ClockWatch(self.clock, self.hand_over.begin, self.replicas.time_stepped)
        self.announcements = LeaderAnnouncements(mesh, self.leaders, self._led)

    def _build_nodes(self, expected_nodes: Callable[[], Collection[NodeId] | None]) -> None:
        self.nodes = ClusterNodes(
            server=self.server,
            mesh=self.mesh,
            options=self.options,
            files=self.files,
            incarnation=str(self.storage.store.identity.incarnation),
            members=self.members,
            leaders=self.leaders,
            meta_group=self.meta_group,
            meta_requests=self.meta_requests,
            stored=StoredBytes(self.mesh, self._stored_here),
            now_ns=self.now_ns,
            yields=self.clock.is_wrong,
            expected_nodes=expected_nodes,
            join_groups=self._join_groups,
            leave_groups=self._leave_groups,
            spawn=self.spawn,
        )

    def _build_publishing(self) -> None:
        server, mesh = self.server, self.mesh
        leader, replica = self.leaders.leader, self.replicas.get
        self.full_disks = FullDisks(
            full=lambda: self.storage.store.full,
            tell=mesh.tell,
            resend=lambda which: self.outboxes.link_restored(which),  # noqa: PLW0108 - built later
            leader=leader,
            flush=self.flush.want,
            replicas=lambda: self.replicas,
        )
        self.publishing = PublishForwarder(mesh.node, mesh, leader=leader, replica=replica)
        self.late_replies = LateReplies(server.router)
        self.admission = Admission(
            node=mesh.node,
            disk=self.storage.store,
            writer=self.host,
            full_peers=self.full_disks.peers,
            replica=replica,
            assignment=self.assignments.get,
        )
        self.outboxes = OutboxTable(
            account=server.account,
            router=self.late_replies,
            transmit=self.publishing.transmit,
            admission=self.admission,
            session=next_session(self.files),
            later=server.turns.wait,
            turns=OutboxTurns(self.host.together, self.replicas.wait_for_disk),
            domain=self.options.domain,
            buffered=(self.options.max_buffered_msgs, self.options.max_buffered_bytes),
        )
        self.answers = AnswerForwarder(mesh.node, mesh, self.outboxes.answered)
        self.receiver = RequestReceiver(
            self.replicas,
            server.router,
            account_of=self.outboxes.account_of,
            hold=lambda request: self.requests.hold(request),  # noqa: PLW0108 - built later
            hold_acks=lambda acks: self.requests.hold_acks(acks),  # noqa: PLW0108 - built later
        )
        self.requests = RequestForwarder(
            node=mesh.node,
            leader=leader,
            send=mesh.send,
            take=self.receiver.take,
            take_acks=self.receiver.take_acks,
            lost=self.receiver.lost,
            before_send=mesh.interest.flush,
            account_of=self.outboxes.account_name,
        )

    def _build_observers(self) -> None:
        server, mesh = self.server, self.mesh
        self.usage = Usage(
            options=self.options,
            assignments=self.assignments,
            clustered=self.clustered,
            leads=self.replicas.leads,
            links=mesh,
        )
        self.quotas = AccountQuotas(
            options=self.options,
            assignments=self.assignments,
            clustered=self.clustered,
            leader=self.leaders.leader,
            rpc=mesh.rpc,
            replicas=self.replicas,
        )
        access = OriginAccess.inside_of(server, self.options.remotes)
        self.origins = MirrorsAndSources(access, self.spawn)
        self.member_changes = MemberChanges(
            host=self.host,
            meta_group=self.meta_group,
            meta_requests=self.meta_requests,
            connected=mesh.connected,
            member_name=self.members.name,
            spawn=self.spawn,
        )
        self.info = AssetInfo(
            server_name=server.name,
            domain=self.options.domain,
            system_account=server.options.system_account,
            links=mesh,
            members=self.members,
            leader=self.leaders.leader,
            status=self.host.status,
            member_changes=self.member_changes,
            origin_infos=self.origins.infos,
            mirrors=self.assignments.sums.mirrors_of,
            now_ns=self.now_ns,
        )
        self.advisories = Advisories(server.router, self.info, server.connections.get, self.now_ns)
        self.advisories.later = server.turns.wait

    def _build_replicas(self) -> None:
        server, mesh, options = self.server, self.mesh, self.options
        self.push_interest = PushInterest(mesh.interest, exporters(server.options.accounts))
        self._replica_services = ReplicaServices(
            node=mesh.node,
            host=self.host,
            usage=self.usage,
            delivery=DeliveryServices(
                router=server.router,
                send_frame=mesh.send,
                later=server.turns.wait,
                interest=self.push_interest,
                advisories=self.advisories,
                domain=options.domain.encode(),
                now_ns=self.now_ns,
            ),
            state_db=self.storage.state_db,
            block_cache=self.storage.block_cache,
            relaxed=options.flush_interval_s is not None,
            feature_level=lambda: self.assignments.level,
            domain=options.domain,
            now_ns=self.now_ns,
            time_is_guess=lambda: self.clock.is_guess,
            account=server.account,
            connected=mesh.connected,
            answer=self.answers.send,
            on_leader=self.leaders.note,
            on_leadership=self._leadership_changed,
            on_reconfigured=self.origins.reconfigured,
            on_erased=self.flush.erased,
            on_checkpoint=self.flush.written,
        )
        self.membership = Membership(
            node=mesh.node,
            replicas=self.replicas,
            storage=self.storage,
            host=self.host,
            meta_group=self.meta_group,
            meta_requests=self.meta_requests,
            member_changes=self.member_changes,
            leaders=self.leaders,
            usage=self.usage,
            spawn=self.spawn,
        )
        self.storage.block_cache.on_damage = self._block_damaged
        self.scrub = Scrub(
            files=self.files,
            replicas=self._scrubbed,
            damaged=self.membership.damaged,
            now_ns=self.now_ns,
            interval_ns=options.scrub_interval_ns,
            keep_open=self.storage.store.keep_open,
        )

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        mesh = self.mesh
        for part in (self.publishing, self.answers, self.announcements, self.meta_requests,
                     self.quotas):  # fmt: skip
            part.start()
        mesh.register(CHANNEL_CONSUMER_REQUESTS, self.requests.received)
        mesh.register(CHANNEL_ACKS, self.requests.received_acks)
        mesh.register(CHANNEL_USAGE, self.usage.received)
        for on_peer in (self.usage.peer_changed, self.announcements.peer_changed,
                        self.full_disks.peer_changed, self._peer_changed):  # fmt: skip
            mesh.on_peer(on_peer)
        mesh.interest.on_change.append(self.push_interest.changed)
        mesh.interest.on_asked.append(self._pulls_lost)
        self._loop = asyncio.get_running_loop()
        self.spawn(self.host.run(), "raft host")
        self.spawn(self.clock_watch.run(), "clock watch")
        self.spawn(self.flush.run(), "state flush")
        self.spawn(self.full_disks.run(), "full disks")
        self.spawn(self.scrub.run(), "scrub")
        self.spawn(self.flush.run_erasures(), "secure erase")
        self.spawn(self.storage.block_moves.run(), "block files")
        with self.storage.starting(self.server.restart, rebuilt=mesh.has_routes):
            self._load_table()
            self.nodes.start()

    def _load_table(self) -> None:
        """Raises StartFailed."""
        try:
            self.meta_group.load()
        except TooNew as error:
            raise StartFailed(f"Can't start JetStream: {error}. Nothing was changed") from error
        except Exception as error:
            if self.mesh.transport is None:
                raise StartFailed(
                    f"Can't start JetStream: the table of streams is damaged ({error}), and there "
                    "are no peers to fetch it from"
                ) from error
            logger.warning("the table of streams is damaged (%s)", error)
            self._table_lost = True
            self.storage.wipe_state(GroupId(META_GROUP))
            self.meta_group.load()

    async def stop(self) -> None:
        """After leadership was handed over."""
        self.replicas.close()
        self.meta_group.close()
        await self.host.stop()
        self.storage.store.close()

    # -- which part is notified of what ---------------------------------------------------------

    def _join_groups(self, founding: Founding) -> bool:
        """Join the meta group and the groups of all streams assigned to this node. A node that
        joined later is not a founding voter, so it neither votes nor campaigns before its log says
        that it is a member. False: the log of the table was lost; the streams are unknown."""
        damage = self.storage.damage(META_GROUP)
        if damage is not None or self._table_lost:
            self._table_lost = False
            reason = damage or "the table of streams is damaged"
            logger.error("%s. This node fetches the table of streams from its peers", reason)
            self.meta_group.give_up_log(self.storage.store)
            self.nodes.table_loaded()
        elif self.assignments.applied and self.storage.log_given_up(META_GROUP):
            self.meta_group.log_given_up(self.storage.store.reader(META_GROUP))
            self.nodes.table_loaded()
        for assignment in self.assignments:
            self._assigned(assignment)
        self.membership.drop_unassigned()
        voters, applied = founding.voters(), self.assignments.applied
        self.host.add_group(META_GROUP, voters=voters, machine=self.meta_group, applied=applied)
        return not self.host.status(META_GROUP).core.recovering

    def _leave_groups(self) -> None:
        """This node was removed from the cluster."""
        for assignment in self.assignments:
            self.outboxes.left(assignment)
            self.requests.forget(assignment.group)
        for replica in self.replicas:
            self.replicas.leave(replica)
        self.meta_group.close()
        self.host.remove_group(META_GROUP, wipe=False)

    def _disk_recovered(self) -> None:
        """The store was reopened after a failure (raft.Host, on_recovered). Unflushed state is
        lost, as after a crash, and replayed from the log; streams in memory lost nothing."""
        kept = set(self.host.groups())
        for replica in self.replicas:
            if replica.group not in kept:
                self.replicas.discard(replica.group)
                self.storage.block_cache.discard_group(replica.group)
        self.meta_group.close()
        self._load_table()
        if (founding := self.nodes.table_loaded()) is not None:
            self.nodes.enter(founding)
        self.flush.resume_erasures()

    def _assigned(self, assignment: Assignment) -> None:
        self.membership.hold(assignment)
        self.outboxes.assigned(assignment)

    def _reconfigured(self, assignment: Assignment) -> None:
        self.outboxes.reconfigured(assignment)
        self.membership.hold(assignment)

    def _removed(self, assignment: Assignment) -> None:
        group = assignment.group
        self.outboxes.removed(assignment)
        self.membership.removed(GroupId(group))
        self.usage.forget(group)
        self.leaders.forget(group)
        self.requests.forget(group)

    def _open_replica(self, assignment: Assignment, voters: Sequence[NodeId]) -> Replica:
        return Replica.open(self._replica_services, assignment, voters)

    def _scrubbed(self) -> Iterator[Scrubbed]:
        for replica in self.replicas:
            held = self.host.held(replica.group)
            if replica.storage is Storage.FILE and held is not None:
                yield Scrubbed(
                    replica.group,
                    replica.stream.store.segments,
                    held.log,
                    partial(self._is_open, replica),
                )

    def _is_open(self, replica: Replica) -> bool:
        return self.replicas.get(replica.group) is replica

    def _block_damaged(self, group: int, error: Exception) -> None:
        """Called by the reader of a block, on any thread, in the middle of its work."""
        self._loop.call_soon_threadsafe(self.membership.damaged, group, error)

    def _leadership_changed(self, replica: Replica, leads: bool) -> None:  # noqa: FBT001
        """This node now serves a stream as its leader, or no longer does."""
        if leads:
            self.announcements.announce(replica.group, replica.term)
        self.advisories.of_leadership(replica, leads)
        if leads:
            self.membership.leads(replica)
        self.origins.leadership_changed(replica, leads)

    def _stored_here(self) -> int:
        return self.usage.stored_here()

    def _meta_leader_changed(self, leader: NodeId | None) -> None:
        if leader is not None:
            self.leaders.note(META_GROUP, self.host.status(META_GROUP).core.term, leader)

    def _leader_changed(self, group: int) -> None:
        """The group has a new leader, or its leader has begun to serve it."""
        self.outboxes.resend(group)
        self.requests.release(group)

    def _led(self) -> list[tuple[int, Term]]:
        led = self.replicas.led_terms()
        if self.meta_group.is_leader:
            led.append((META_GROUP, self.host.status(META_GROUP).core.term))
        return led

    def _peer_changed(self, peer: Peer, connected: bool) -> None:  # noqa: FBT001
        if connected:
            self.outboxes.link_restored(lambda group: self.leaders.leader(group) == peer.node)
            self.requests.link_restored()
        else:
            self._pulls_lost(peer.node)

    def _pulls_lost(self, node: NodeId) -> None:
        """The node is disconnected, or was connected in one direction only: a leader drops pull
        requests whose inbox it does not know."""
        self.receiver.pulls_lost(self.requests.lost_pulls(node))

    def clustered(self) -> bool:
        return self.members.clustered
