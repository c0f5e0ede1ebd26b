"""JetStream on one node, assembled: the API, monitoring and bulk reads on top of its streams.

Owns: building and wiring these parts; stream_node.py does the same for the parts below them. No
other module constructs a part or passes one to another.
May not touch: how any of them works. Imported only where JetStream is enabled, so that a plain
cluster node starts without it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from broker.accounts import GLOBAL_ACCOUNT
from broker.cluster.api.backup import Snapshots
from broker.cluster.api.jetstream_accounts import JetStreamAccounts
from broker.cluster.api.jetstream_api import API_SUBJECTS, ApiService
from broker.cluster.api.leader_api import LeaderApi
from broker.cluster.api.leader_calls import LeaderCalls
from broker.cluster.api.message_gets import DIRECT_GET, MessageGets
from broker.cluster.api.no_jetstream import NoJetStream
from broker.cluster.api.restore import Restores
from broker.cluster.api.scan_plan import PlanService
from broker.cluster.api.server_admin import ServerAdmin
from broker.cluster.api.stream_api import StreamApi
from broker.cluster.api.stream_moves import StreamMoves
from broker.cluster.api.system_api import SystemApi
from broker.cluster.api.write_batches import WriteService
from broker.cluster.limits.machine_limits import size_text, unless_set
from broker.cluster.limits.request_budget import RequestBudget
from broker.cluster.meta.assignments import Assignment
from broker.cluster.meta.feature_level import TooNew
from broker.cluster.meta.node_table import Standing
from broker.cluster.meta.subject_overlaps import SubjectOverlaps
from broker.cluster.observe.health import JetStreamHealth
from broker.cluster.observe.jsz import JetStreamDocument, varz_jetstream
from broker.cluster.observe.metrics import JetStreamMetrics
from broker.cluster.observe.raftz import RaftGroups
from broker.cluster.observe.server_events import ServerEvents
from broker.cluster.peers.mesh import Mesh
from broker.cluster.platform import Platform
from broker.cluster.replica.push_interest import exporters
from broker.cluster.replica.replica import Replica
from broker.cluster.replica.replica_storage import ReplicaStorage
from broker.cluster.stream_node import Spawn, StreamNode
from broker.cluster.stream_requests import StreamLookup
from broker.config.options import JetStreamOptions
from broker.jetstream.api.info import PeerInfo
from broker.jetstream.api.stream_access import may_scan, scan_subject
from broker.scan.admission import ScanAdmission, ScanLimits
from broker.scan.server import ScanReader, Scans, ScanSource, ScanTurns, WritersFirst
from broker.server.metric_samples import Exposition
from broker.server.services import BulkReader, Document, Query, StartFailed
from broker.store.encryption.key_file import EncryptionKeys
from broker.subjects import Steps
from raft import GroupId, NodeId
from raft.host.statistics import HostStatistics
from raft.store.log_store import StoreError

if TYPE_CHECKING:
    from broker.server.server import Server

logger = logging.getLogger("jetraft.cluster")


class JetStream:
    """Built by `open_jetstream`; started once the mesh is up. Only the runtime knows it."""

    def __init__(self, node: StreamNode) -> None:
        server, mesh, options = node.server, node.mesh, node.options
        self._node = node
        turns = ScanTurns(server.turns, WritersFirst(lambda: node.host.flushes))
        self._scans = Scans(turns, ScanAdmission(scan_limits(options)))
        calls = LeaderCalls(node.leaders, mesh.rpc)
        budget = RequestBudget()
        self._leader_api = LeaderApi(
            node=mesh.node,
            domain=options.domain.encode(),
            strict=options.strict,
            replicas=node.replicas,
            rpc=mesh.rpc,
            info=node.info,
            quotas=node.quotas,
            advisories=node.advisories,
            snapshots=Snapshots(server.router, mesh.interest, node.advisories, node.spawn),
            budget=budget,
            turns=server.turns,
        )
        self._gets = MessageGets(
            node=mesh.node,
            router=server.router,
            assignments=node.assignments,
            replicas=node.replicas,
            leader_api=self._leader_api,
            calls=calls,
            disk_failed=lambda: node.host.trouble() is not None,
            spawn=node.spawn,
        )
        self._streams = _stream_api(node, calls)
        self._admin = ServerAdmin(
            cluster=mesh.cluster,
            members=node.members,
            group=node.meta_group,
            meta_requests=node.meta_requests,
            leaders=node.leaders,
            rpc=mesh.rpc,
            connected=mesh.connected,
            placement=node.nodes.placement,
        )
        self._api = ApiService(
            domain=options.domain.encode(),
            strict=options.strict,
            router=server.router,
            account=server.account,
            assignments=node.assignments,
            replicas=node.replicas,
            clustered=node.clustered,
            requests=node.requests,
            meta_requests=node.meta_requests,
            calls=calls,
            advisories=node.advisories,
            streams=self._streams,
            gets=self._gets,
            budget=budget,
            spawn=node.spawn,
        )
        lookup = StreamLookup(node.assignments, node.members, node.meta_requests.barrier)
        self._plans = PlanService(
            mesh=mesh,
            router=server.router,
            account=server.account,
            lookup=lookup,
            replicas=node.replicas,
            calls=calls,
            wait_current=self._leader_api.wait_current,
            status=node.host.status,
            member_name=node.members.name,
            spawn=node.spawn,
            turns=server.turns,
        )
        self._writes = WriteService(
            router=server.router,
            account=server.account,
            lookup=lookup,
            level=lambda: node.assignments.level,
            replica=node.replicas.of_stream,
            calls=calls,
            bounds=node.usage.bounds,
            disk_refuses=node.admission.disk_refuses,
            spawn=node.spawn,
            turns=server.turns,
        )
        self._accounts = self._jetstream_accounts()
        self._build_monitor()

    def _build_monitor(self) -> None:
        node, server = self._node, self._node.server
        self._document = JetStreamDocument(
            server_id=server.id,
            options=node.options,
            replicas=node.replicas,
            assignments=node.assignments,
            info=node.info,
            api=self._api.statistics,
        )
        self._events = self._server_events()
        self._health = JetStreamHealth(
            options=node.options,
            node=node.mesh.node,
            founded=node.members.founded.is_set,
            learned=node.members.learned.is_set,
            removed=lambda: node.members.removed,
            unreachable=node.mesh.unreachable,
            leaving=lambda: node.members.standing(node.mesh.node) is Standing.LEAVING,
            leader=node.info.leader,
            trouble=node.host.trouble,
            disk_full=lambda: node.storage.store.full,
            clock_trouble=node.clock_watch.trouble,
            strangers=node.mesh.strangers,
            stuck=lambda: [*node.nodes.repair.stuck, *node.membership.incurable()],
            lame_duck=lambda: server.lame_duck,
            has_account=self._accounts.has_jetstream,
            assignments=self._held_here,
            assignment=node.assignments.get,
            replica=node.replicas.get,
            held=node.host.held,
        )
        self._metrics = JetStreamMetrics(
            replicas=node.replicas,
            info=node.info,
            peers=self._peers_of,
            host=node.host.metrics,
            trouble=node.host.trouble,
            store=node.storage.store,
            requests_dropped=lambda: node.requests.dropped,
            clock_error_ns=lambda: node.clock.own_error_ns,
            clock_trouble=node.clock_watch.trouble,
            api=self._api.statistics,
            usage=node.usage,
            scans=self._scans,
            readers=lambda: self._plans.scan_readers.present(time.monotonic()),
        )
        self._raft_groups = RaftGroups(
            server.options.system_account,
            node.members,
            node.replicas,
            lambda group: node.host.held(group) is not None,
            node.host.status,
            node.mesh.silent_ns,
        )

    def _held_here(self) -> list[Assignment]:
        """The streams of which this node holds, and should keep, a replica; including those of its
        previous incarnation, which lack a replica until it is rebuilt here."""
        node, table = self._node.mesh.node, self._node.assignments
        ours = {node, *table.nodes.former(node)}
        return [a for a in table if node in a.peers and not ours.isdisjoint(a.members)]

    # -- life -----------------------------------------------------------------------------------

    def _server_events(self) -> ServerEvents:
        node, server = self._node, self._node.server
        return ServerEvents(
            node.advisories,
            system=lambda: server.account(server.options.system_account),
            server=(server.name, server.id),
            cluster=node.mesh.cluster,
            leads=lambda: node.members.clustered and node.meta_group.knows_all,
            meta_cluster=self._document.meta_cluster,
            names=lambda: {record.name for record in node.assignments.nodes.present()},
            full=lambda: node.storage.store.full,
            dropped=lambda: self._api.dropped,
        )

    def serve_accounts(self) -> None:
        """Subscribe the API in every account, before the mesh starts."""
        server = self._node.server
        server.router.serve_in_bulk(self._api)
        server.tracing.show_as_system(
            API_SUBJECTS[:-1], without=(DIRECT_GET, b"$JS.API.CONSUMER.MSG.NEXT.")
        )
        self._serve()

    def reconfigure(self, options: JetStreamOptions) -> None:
        """Accounts, remotes and limits may have changed; nothing else (server/process/reload.py).
        A limit that is not configured stays what the machine had at the start."""
        node = self._node
        measured = unless_set(options, node.options)
        node.options = replace(
            node.options,
            accounts=options.accounts,
            remotes=options.remotes,
            limits=options.limits,
            max_memory_store=measured.max_memory_store,
            max_file_store=measured.max_file_store,
        )
        node.usage.options = node.quotas.options = self._document.options = node.options
        node.origins.access.remotes = options.remotes
        node.push_interest.exporters = exporters(node.server.options.accounts)
        self._serve()

    def _serve(self) -> None:
        server, granted = self._node.server, self._node.options.accounts
        names = (GLOBAL_ACCOUNT, *(one.name for one in server.options.accounts))
        self._accounts.serve(names, granted or (GLOBAL_ACCOUNT,))

    def _jetstream_accounts(self) -> JetStreamAccounts:
        node = self._node
        server = node.server
        without = NoJetStream(server.router, server.account, node.options.domain.encode())
        system = SystemApi(
            account=server.account(server.options.system_account),
            otherwise=without,
            strict=node.options.strict,
            admin=self._admin,
            moves=self._streams.moves,
            streams=self._streams,
            account_of=server.account,
            balance=node.nodes.balance.ask,
            spawn=node.spawn,
        )
        return JetStreamAccounts(
            account=server.account,
            with_jetstream=(self._api, self._plans, self._writes),
            without=without,
            system=system,
            system_account=server.options.system_account,
        )

    def start(self) -> None:
        """Raises StartFailed when the data was written by a version with newer features."""
        for part in (self._leader_api, self._gets, self._plans, self._writes, self._admin):
            part.start()
        try:
            self._node.start()
        except TooNew as error:
            raise StartFailed(f"Can't start JetStream: {error}") from error
        self._node.spawn(self._events.run(), "server events")

    async def hand_over(self) -> None:
        """Transfer leaderships and wait, for a bounded time, until other nodes have taken over."""
        await self._node.hand_over.finish()

    def lame_duck(self) -> None:
        self._node.hand_over.begin()

    def all_answered(self) -> bool:
        """Whether every publish of a client of this node has its answer."""
        return self._node.outboxes.all_answered()

    def hold_replies(self) -> None:
        self._node.late_replies.holding = True

    def all_delivered(self) -> bool:
        """Whether every publish is answered, and every answer was delivered to its client."""
        return self._node.late_replies.all_delivered() and self.all_answered()

    async def stop(self) -> None:
        """Call `hand_over` first."""
        await self._node.stop()

    # -- what the runtime asks ------------------------------------------------------------------

    def jsz(self, query: Query) -> Steps[Document]:
        return self._document.jsz(query)

    def replica_of(self, account: str, stream: str) -> Replica | None:
        """This node's replica of a stream, if it has one. For the simulator, which compares all."""
        return self._node.replicas.of_stream(account, stream)

    def host_statistics(self) -> HostStatistics:
        """Statistics of the Raft host. For the simulator, which counts rare events."""
        return self._node.host.statistics()

    def voters(self) -> list[tuple[NodeId, ...]]:
        """The voters of every Raft group of this node. For the simulator, which may wipe the disk
        of this node."""
        host = self._node.host
        return [host.status(group).core.voters for group in host.groups()]

    @property
    def is_removed(self) -> bool:
        """Whether this node was removed from its cluster. For the simulator, which then ends it."""
        return self._node.members.removed

    def raftz(self, query: Query) -> Steps[Document]:
        return self._raft_groups.document(query)

    def healthz(self, query: Query) -> Steps[tuple[int, Document]]:
        return self._health.healthz(query)

    def held(self) -> int:
        """How many consumers this node has; a stream counts as three."""
        return sum(3 + len(replica.stream.consumers) for replica in self._node.replicas)

    def _peers_of(self, group: GroupId) -> Sequence[PeerInfo]:
        replica = self._node.replicas.get(group)
        return () if replica is None else self._node.info.cluster(replica).replicas

    def metrics(self, into: Exposition) -> Iterator[None]:
        return self._metrics.steps(into)

    def varz(self) -> Steps[Document]:
        document = yield from self.jsz({})
        return varz_jetstream(document, self._scans)

    async def scan(self, connection: BulkReader, request_json: bytes) -> None:
        def find(stream: str) -> ScanSource | None:
            replica = self._node.replicas.of_stream(connection.account.name, stream)
            if replica is None:
                return None
            return ScanSource(replica.stream.store, replica.assignment.incarnation)

        def permitted(stream: str) -> bool:
            if may_scan(connection.rules, stream):
                return True
            connection.refuse_publish(scan_subject(stream))
            return False

        def write(data: bytes | memoryview) -> None:
            """At once, so that its cost counts as that of the scan."""
            connection.queue(data)
            connection.flush()

        reader = ScanReader(
            account=connection.account.name,
            write=write,
            drain=connection.drained,
            permitted=permitted,
        )
        await self._scans.serve(reader, request_json, find)


def _stream_api(node: StreamNode, calls: LeaderCalls) -> StreamApi:
    overlaps = SubjectOverlaps(node.assignments, node.server.turns)
    overlaps.start()
    return StreamApi(
        strict=node.options.strict,
        assignments=node.assignments,
        members=node.members,
        meta_requests=node.meta_requests,
        calls=calls,
        quotas=node.quotas,
        advisories=node.advisories,
        restores=Restores(
            directory=node.directory,
            router=node.server.router,
            assignments=node.assignments,
            meta_requests=node.meta_requests,
            calls=calls,
            advisories=node.advisories,
            spawn=node.spawn,
            cipher=node.storage.store.cipher,
        ),
        overlaps=overlaps,
        turns=node.server.turns,
        captured=node.outboxes.captured,
        placement=node.nodes.placement,
        moves=StreamMoves(node.assignments, node.members, node.meta_requests, node.nodes.placement),
    )


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """The data of this node. It contains the node's identity, so it is opened before peers are
    contacted."""

    directory: Path
    storage: ReplicaStorage

    @property
    def node(self) -> NodeId:
        return self.storage.store.identity.member


def open_store(
    options: JetStreamOptions, platform: Platform, *, name: str, cluster: str, rebuilt: bool
) -> OpenedStore:
    """`rebuilt`: see ReplicaStorage.open. Raises StartFailed."""
    directory = platform.directory(options.store_dir)
    try:
        storage = ReplicaStorage.open(
            directory,
            platform,
            node_name=name,
            cluster_name=cluster,
            flush_interval_s=options.flush_interval_s,
            rebuilt=rebuilt,
            keys=EncryptionKeys(options.cipher, options.key, options.previous_key),
        )
    except StoreError as error:
        raise StartFailed(f"Can't start JetStream: {error}") from error
    return OpenedStore(directory, storage)


def open_jetstream(
    server: Server,
    mesh: Mesh,
    options: JetStreamOptions,
    *,
    store: OpenedStore,
    expected_nodes: Callable[[], Collection[NodeId] | None],
    spawn: Spawn,
    platform: Platform,
) -> JetStream:
    directory = store.directory
    node = StreamNode(
        server,
        mesh,
        options,
        directory=directory,
        storage=store.storage,
        expected_nodes=expected_nodes,
        spawn=spawn,
        platform=platform,
    )
    jetstream = JetStream(node)
    jetstream.serve_accounts()
    logger.info("Starting JetStream")
    if options.max_memory_store is not None and options.max_file_store is not None:
        logger.info("  Max Memory:      %s", size_text(options.max_memory_store))
        logger.info("  Max Storage:     %s", size_text(options.max_file_store))
    logger.info('  Store Directory: "%s"', directory)
    log = logger.info if options.flush_interval_s is None else logger.warning
    log("  %s", options.sync_sentence)
    return jetstream


def scan_limits(options: JetStreamOptions) -> ScanLimits:
    return ScanLimits(
        open_max=options.max_scans,
        open_per_account_max=options.max_account_scans,
        held_bytes_max=options.max_scan_bytes,
        held_bytes_per_account_max=options.max_account_scan_bytes,
    )
