"""JetStream on one node, assembled: every part is built and wired here, and nowhere else.

Owns: which parts there are, which part hears of what, and the order of start and stop.
May not touch: how any of them works. Imported only where JetStream is enabled, so that a plain
cluster node starts without it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from broker.accounts import GLOBAL_ACCOUNT
from broker.cluster.api.backup import Snapshots
from broker.cluster.api.jetstream_api import ApiService
from broker.cluster.api.leader_api import LeaderApi
from broker.cluster.api.leader_calls import LeaderCalls
from broker.cluster.api.message_gets import MessageGets
from broker.cluster.api.no_jetstream import NoJetStream
from broker.cluster.api.restore import Restores
from broker.cluster.api.scan_plan import PlanService
from broker.cluster.api.stream_api import StreamApi
from broker.cluster.clock import steady_clock
from broker.cluster.consumer_requests.forwarding import (
    ForwardedAcks,
    ForwardedRequest,
    RequestForwarder,
)
from broker.cluster.limits.account_limits import AccountQuotas
from broker.cluster.limits.usage import Usage
from broker.cluster.meta.assignments import META_GROUP, Assignment, AssignmentTable
from broker.cluster.meta.founding import Founders, Founding, FoundingCalls, next_session
from broker.cluster.meta.members import ClusterMembers
from broker.cluster.meta.meta_group import MetaGroup
from broker.cluster.meta.meta_requests import MetaRequests
from broker.cluster.observe.advisories import Advisories
from broker.cluster.observe.asset_info import AssetInfo
from broker.cluster.observe.jsz import JetStreamMonitor
from broker.cluster.observe.raftz import RaftGroups
from broker.cluster.origins.mirroring import MirrorsAndSources
from broker.cluster.origins.origin_reader import OriginAccess
from broker.cluster.peers.channels import CHANNEL_ACKS, CHANNEL_CONSUMER_REQUESTS, CHANNEL_USAGE
from broker.cluster.peers.leader_table import LeaderTable
from broker.cluster.peers.mesh import Mesh
from broker.cluster.peers.no_peers import NoPeers
from broker.cluster.publish.admission import Admission
from broker.cluster.publish.forwarding import AnswerForwarder, PublishForwarder
from broker.cluster.publish.outbox_table import OutboxTable
from broker.cluster.replica.hand_over import HandOver
from broker.cluster.replica.leader_announcements import LeaderAnnouncements
from broker.cluster.replica.leadership import DeliveryServices
from broker.cluster.replica.member_changes import MemberChanges
from broker.cluster.replica.membership import Membership
from broker.cluster.replica.push_interest import PushInterest
from broker.cluster.replica.replica import Replica, ReplicaServices
from broker.cluster.replica.replica_storage import ReplicaStorage
from broker.cluster.replica.replica_table import ReplicaTable
from broker.cluster.replica.request_receiver import RequestReceiver
from broker.cluster.replica.state_flush import StateFlush
from broker.config.options import JetStreamOptions
from broker.scan.server import Scans, ScanSource
from broker.server.client import internal_client
from broker.server.services import Document, Query, StartFailed
from raft import GroupId, NodeId, Term
from raft.host.host import Host
from raft.store.log_store import StoreError
from raft.transport.transport import Peer, Transport

if TYPE_CHECKING:
    from broker.server.client.connection import Connection
    from broker.server.server import Server

logger = logging.getLogger("jetraft.cluster")

Spawn = Callable[[Awaitable[None], str], object]


class JetStream:
    """Built by `open_jetstream`; started once the mesh is up. Only the runtime knows it."""

    def __init__(
        self,
        server: Server,
        mesh: Mesh,
        options: JetStreamOptions,
        *,
        directory: Path,
        expected_nodes: Callable[[], int],
        spawn: Spawn,
    ) -> None:
        """Raises raft.StoreError when the store cannot be opened."""
        self._server = server
        self._mesh = mesh
        self._options = options
        self._directory = directory
        self._spawn = spawn
        self._now_ns = steady_clock()
        self._storage = ReplicaStorage.open(
            directory,
            node_name=mesh.name,
            cluster_name=mesh.cluster,
            flush_interval_s=options.flush_interval_s,
        )
        self._host = Host(
            node=mesh.node,
            store=self._storage.store,
            transport=mesh.transport or cast(Transport, NoPeers()),
            on_recovered=self._disk_recovered,
        )
        self._members = ClusterMembers(mesh.node, mesh.peer_name)
        self._leaders = LeaderTable(mesh.connected, self._leader_changed)
        self._assignments = AssignmentTable()
        self._replicas = ReplicaTable(self._assignments, self._open_replica)
        self._build_meta(expected_nodes)
        self._build_publishing()
        self._build_observers()
        self._build_replicas()
        self._build_api()
        self._scans = Scans()

    # -- building -------------------------------------------------------------------------------

    def _build_meta(self, expected_nodes: Callable[[], int]) -> None:
        mesh, storage = self._mesh, self._storage
        self._meta_group = MetaGroup(
            meta=self._assignments,
            state_db=storage.state_db,
            host=self._host,
            on_assigned=self._assigned,
            on_reconfigured=self._reconfigured,
            on_removed=self._removed,
            on_leader=self._meta_leader_changed,
            on_written=self._meta_written,
        )
        self._meta_requests = MetaRequests(mesh.node, mesh.rpc, self._leaders, self._meta_group)
        founders = Founders(
            path=self._directory / "founding.json",
            cluster=mesh.cluster,
            name=mesh.name,
            incarnation=str(storage.store.identity.incarnation),
            expected=expected_nodes,
            on_formed=self._founded,
        )
        founders.load()
        self._founding = FoundingCalls(founders, self._members, mesh.rpc, mesh.peers, self._spawn)
        self._flush = StateFlush(
            directory=self._directory,
            store=storage.store,
            host=self._host,
            meta_group=self._meta_group,
            replicas=self._replicas,
        )
        self._hand_over = HandOver(self._replicas, self._meta_group, self._members, mesh.connected)
        self._announcements = LeaderAnnouncements(mesh, self._leaders, self._led)

    def _build_publishing(self) -> None:
        server, mesh = self._server, self._mesh
        leader, replica = self._leaders.leader, self._replicas.get
        self._publishing = PublishForwarder(mesh.node, mesh, leader=leader, replica=replica)
        self._outboxes = OutboxTable(
            account=server.account,
            router=server.router,
            transmit=self._publishing.transmit,
            admission=Admission(
                node=mesh.node,
                disk=self._storage.store,
                writer=self._host,
                leader=leader,
                replica=replica,
                assignment=self._assignments.get,
            ),
            session=next_session(self._directory / "session"),
            domain=self._options.domain,
        )
        self._answers = AnswerForwarder(mesh.node, mesh, self._outboxes.answered)
        self._receiver = RequestReceiver(
            self._replicas,
            server.router,
            account_of=self._outboxes.account_of,
            hold=self._hold_request,
            hold_acks=self._hold_acks,
        )
        self._requests = RequestForwarder(
            node=mesh.node,
            leader=leader,
            send=mesh.send,
            take=self._receiver.take,
            take_acks=self._receiver.take_acks,
            before_send=mesh.interest.flush,
        )

    def _build_observers(self) -> None:
        server, mesh = self._server, self._mesh
        self._usage = Usage(
            options=self._options,
            assignments=self._assignments,
            clustered=self._clustered,
            leads=self._replicas.leads,
            links=mesh,
        )
        self._quotas = AccountQuotas(
            options=self._options,
            assignments=self._assignments,
            clustered=self._clustered,
            leader=self._leaders.leader,
            rpc=mesh.rpc,
            replicas=self._replicas,
        )
        access = OriginAccess(
            self._options.remotes, lambda account: internal_client.connect(server, account)
        )
        self._origins = MirrorsAndSources(access, self._spawn)
        self._member_changes = MemberChanges(
            host=self._host,
            meta_group=self._meta_group,
            meta_requests=self._meta_requests,
            connected=mesh.connected,
            member_name=self._members.name,
            spawn=self._spawn,
        )
        self._info = AssetInfo(
            server_name=server.name,
            domain=self._options.domain,
            links=mesh,
            members=self._members,
            leader=self._leaders.leader,
            status=self._host.status,
            member_changes=self._member_changes,
            origin_infos=self._origins.infos,
            now_ns=self._now_ns,
        )
        self._advisories = Advisories(
            server.router, self._info, server.connections.get, self._now_ns
        )

    def _build_replicas(self) -> None:
        server, mesh, options = self._server, self._mesh, self._options
        self._push_interest = PushInterest(mesh.interest)
        self._replica_services = ReplicaServices(
            node=mesh.node,
            host=self._host,
            usage=self._usage,
            delivery=DeliveryServices(
                router=server.router,
                send_frame=mesh.send,
                later=server.turns.wait,
                interest=self._push_interest,
                advisories=self._advisories,
                domain=options.domain.encode(),
                now_ns=self._now_ns,
            ),
            state_db=self._storage.state_db,
            block_cache=self._storage.block_cache,
            relaxed=options.flush_interval_s is not None,
            domain=options.domain,
            now_ns=self._now_ns,
            account=server.account,
            connected=mesh.connected,
            answer=self._answers.send,
            on_leader=self._leaders.note,
            on_leadership=self._leadership_changed,
            on_reconfigured=self._origins.reconfigured,
            on_erased=self._flush.erased,
            on_checkpoint=self._flush.written,
        )
        self._membership = Membership(
            node=mesh.node,
            replicas=self._replicas,
            storage=self._storage,
            host=self._host,
            meta_group=self._meta_group,
            meta_requests=self._meta_requests,
            member_changes=self._member_changes,
            leaders=self._leaders,
            usage=self._usage,
            spawn=self._spawn,
        )

    def _build_api(self) -> None:
        server, mesh, options = self._server, self._mesh, self._options
        calls = LeaderCalls(self._leaders, mesh.rpc)
        self._leader_api = LeaderApi(
            node=mesh.node,
            domain=options.domain.encode(),
            strict=options.strict,
            replicas=self._replicas,
            rpc=mesh.rpc,
            info=self._info,
            quotas=self._quotas,
            advisories=self._advisories,
            snapshots=Snapshots(server.router, mesh.interest, self._advisories, self._spawn),
        )
        self._gets = MessageGets(
            node=mesh.node,
            router=server.router,
            assignments=self._assignments,
            replicas=self._replicas,
            leader_api=self._leader_api,
            calls=calls,
            disk_failed=lambda: self._host.trouble() is not None,
        )
        self._api = ApiService(
            domain=options.domain.encode(),
            strict=options.strict,
            router=server.router,
            account=server.account,
            assignments=self._assignments,
            replicas=self._replicas,
            clustered=self._clustered,
            requests=self._requests,
            meta_requests=self._meta_requests,
            calls=calls,
            advisories=self._advisories,
            streams=self._stream_api(calls),
            gets=self._gets,
            spawn=self._spawn,
        )
        self._plans = PlanService(
            mesh=mesh,
            router=server.router,
            account=server.account,
            assignments=self._assignments,
            replicas=self._replicas,
            calls=calls,
            status=self._host.status,
            member_name=self._members.name,
            spawn=self._spawn,
        )
        self._monitor = JetStreamMonitor(
            server_id=server.id,
            options=options,
            replicas=self._replicas,
            assignments=self._assignments,
            info=self._info,
            api=self._api.statistics,
            trouble=self._host.trouble,
            statistics=self._host.statistics,
            requests_dropped=lambda: self._requests.dropped,
            lame_duck=lambda: server.lame_duck,
        )
        self._raft_groups = RaftGroups(
            server.options.system_account,
            self._members,
            self._replicas,
            self._host.status,
            mesh.silent_ns,
        )

    def _stream_api(self, calls: LeaderCalls) -> StreamApi:
        return StreamApi(
            strict=self._options.strict,
            assignments=self._assignments,
            members=self._members,
            meta_requests=self._meta_requests,
            calls=calls,
            quotas=self._quotas,
            advisories=self._advisories,
            restores=Restores(
                directory=self._directory,
                router=self._server.router,
                assignments=self._assignments,
                meta_requests=self._meta_requests,
                calls=calls,
                advisories=self._advisories,
                spawn=self._spawn,
            ),
            connected=self._mesh.connected,
        )

    # -- life -----------------------------------------------------------------------------------

    def serve_accounts(self) -> None:
        """Subscribe the API in every account, before the mesh starts."""
        server = self._server
        with_jetstream = set(self._options.accounts or (GLOBAL_ACCOUNT,))
        for name in [GLOBAL_ACCOUNT, server.options.system_account,
                     *(one.name for one in server.options.accounts)]:  # fmt: skip
            account = server.account(name)
            if name in with_jetstream:
                self._api.serve(account)
                self._plans.serve(account)
            else:
                NoJetStream(server.router, account, self._options.domain.encode()).start()

    def start(self) -> None:
        mesh = self._mesh
        for part in (self._publishing, self._answers, self._announcements, self._meta_requests,
                     self._quotas, self._leader_api, self._gets, self._plans):  # fmt: skip
            part.start()
        mesh.register(CHANNEL_CONSUMER_REQUESTS, self._requests.received)
        mesh.register(CHANNEL_ACKS, self._requests.received_acks)
        mesh.register(CHANNEL_USAGE, self._usage.received)
        for on_peer in (self._usage.peer_changed, self._founding.peer_changed,
                        self._announcements.peer_changed, self._peer_changed):  # fmt: skip
            mesh.on_peer(on_peer)
        mesh.interest.on_change.append(self._push_interest.changed)
        self._spawn(self._host.run(), "raft host")
        self._spawn(self._flush.run(), "state flush")
        self._spawn(self._flush.run_erasures(), "secure erase")
        self._meta_group.load()
        self._founding.start()

    async def hand_over(self) -> None:
        """Wait until other nodes lead what they can lead, for a bounded time."""
        await self._hand_over.finish()

    def lame_duck(self) -> None:
        self._hand_over.begin()

    def all_answered(self) -> bool:
        """Whether every publish of a client of this node has its answer."""
        return self._outboxes.all_answered()

    async def stop(self) -> None:
        """After `hand_over`."""
        self._replicas.close()
        self._meta_group.close()
        await self._host.stop()
        self._storage.store.close()

    # -- which part hears of what ---------------------------------------------------------------

    def _founded(self, founding: Founding) -> None:
        self._members.set(list(founding.members))
        self._join_groups()
        self._members.founded.set()
        if self._members.clustered:
            logger.info("cluster founded by %s", ", ".join(sorted(founding.members)))

    def _join_groups(self) -> None:
        """The meta group, and the group of every stream assigned to this node."""
        for assignment in self._assignments:
            self._assigned(assignment)
        self._membership.drop_unassigned()
        self._host.add_group(
            META_GROUP,
            voters=self._members.nodes,
            machine=self._meta_group,
            applied=self._assignments.applied,
        )

    def _disk_recovered(self) -> None:
        """The store was opened again after a failure (raft.Host, on_recovered). Unflushed state is
        gone, as after a crash, and the log replays it; streams in memory lost nothing."""
        kept = set(self._host.groups())
        for replica in self._replicas:
            if replica.group not in kept:
                self._replicas.discard(replica.group)
                self._storage.block_cache.discard_group(replica.group)
        self._meta_group.close()
        self._meta_group.load()
        if self._members.founded.is_set():
            self._join_groups()
        self._flush.resume_erasures()

    def _assigned(self, assignment: Assignment) -> None:
        self._membership.hold(assignment)
        self._outboxes.assigned(assignment)

    def _reconfigured(self, assignment: Assignment) -> None:
        self._outboxes.reconfigured(assignment)
        self._membership.hold(assignment)

    def _removed(self, assignment: Assignment) -> None:
        group = assignment.group
        self._outboxes.removed(assignment)
        self._membership.removed(GroupId(group))
        self._usage.forget(group)
        self._leaders.forget(group)
        self._requests.forget(group)

    def _open_replica(self, assignment: Assignment, voters: Sequence[NodeId]) -> Replica:
        return Replica.open(self._replica_services, assignment, voters)

    def _leadership_changed(self, replica: Replica, leads: bool) -> None:  # noqa: FBT001
        """This node serves a stream as its leader from now on, or stopped to."""
        if leads:
            self._announcements.announce(replica.group, replica.term)
        self._advisories.of_leadership(replica, leads)
        if leads:
            self._member_changes.check(replica)
        self._origins.leadership_changed(replica, leads)

    def _meta_written(self) -> None:
        self._flush.want()

    def _hold_request(self, request: ForwardedRequest) -> None:
        self._requests.hold(request)

    def _hold_acks(self, acks: ForwardedAcks) -> None:
        self._requests.hold_acks(acks)

    def _meta_leader_changed(self, leader: NodeId | None) -> None:
        if leader is not None:
            self._leaders.note(META_GROUP, self._host.status(META_GROUP).core.term, leader)

    def _leader_changed(self, group: int) -> None:
        """Some node leads the group now, or serves it from now on."""
        self._outboxes.resend(group)
        self._requests.release(group)

    def _led(self) -> list[tuple[int, Term]]:
        led = self._replicas.led_terms()
        if self._meta_group.is_leader:
            led.append((META_GROUP, self._host.status(META_GROUP).core.term))
        return led

    def _peer_changed(self, peer: Peer, connected: bool) -> None:  # noqa: FBT001
        if connected:
            self._outboxes.link_restored(lambda group: self._leaders.leader(group) == peer.node)
        else:
            self._receiver.pulls_lost(self._requests.pulls.lost(peer.node))

    def _clustered(self) -> bool:
        return self._members.clustered

    # -- what the runtime asks ------------------------------------------------------------------

    def jsz(self, query: Query) -> Document:
        return self._monitor.jsz(query)

    def raftz(self, query: Query) -> Document:
        return self._raft_groups.document(query)

    def healthz(self, query: Query) -> tuple[int, Document]:
        return self._monitor.healthz(query)

    def metrics(self) -> list[tuple[str, str, dict[str, str], float]]:
        return self._monitor.metrics()

    def varz(self) -> Document:
        document = self.jsz({})
        return {"config": document["config"], "stats": {k: document[k] for k in _STATS}}

    async def scan(self, connection: Connection, request_json: bytes) -> None:
        def find(stream: str) -> ScanSource | None:
            replica = self._replicas.of_stream(connection.account.name, stream)
            if replica is None:
                return None
            return ScanSource(replica.stream.store, str(replica.group))

        await self._scans.serve(connection.queue, connection.drained, request_json, find)


_STATS = ("memory", "storage", "accounts", "ha_assets", "api")


def open_jetstream(
    server: Server,
    mesh: Mesh,
    options: JetStreamOptions,
    *,
    expected_nodes: Callable[[], int],
    spawn: Spawn,
) -> JetStream:
    """Raises StartFailed when the store cannot be opened."""
    directory = store_directory(options.store_dir)
    try:
        jetstream = JetStream(
            server,
            mesh,
            options,
            directory=directory,
            expected_nodes=expected_nodes,
            spawn=spawn,
        )
    except StoreError as error:
        raise StartFailed(f"Can't start JetStream: {error}") from error
    jetstream.serve_accounts()
    logger.info("Starting JetStream")
    logger.info('  Store Directory: "%s"', directory)
    log = logger.info if options.flush_interval_s is None else logger.warning
    log("  %s", options.sync_sentence)
    return jetstream


def store_directory(configured: str) -> Path:
    """The directory of the data, created if it does not exist. Raises StartFailed."""
    if not configured:
        configured = str(Path(tempfile.gettempdir()) / "nats")
        logger.warning("Temporary storage directory used, data could be lost on system reboot")
    base = Path(configured)
    if base.exists() and not base.is_dir():
        raise StartFailed("Can't start JetStream: storage directory is not a directory")
    directory = base / "jetstream"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        reason = f"could not create storage directory - {error}"
        raise StartFailed(f"Can't start JetStream: {reason}") from error
    return directory
