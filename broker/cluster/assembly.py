"""JetStream on one node, assembled: store, groups, API, plans, mirrors, bulk reads.

Owns: which parts there are and in which order they start.
May not touch: how any of them works; this is wiring. Imported only where JetStream is switched on,
so that a plain cluster node starts without it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from broker.accounts import GLOBAL_ACCOUNT
from broker.cluster.api.jetstream_api import ApiService
from broker.cluster.api.leader_api import LeaderApi
from broker.cluster.api.no_jetstream import NoJetStream
from broker.cluster.api.scan_plan import PlanService
from broker.cluster.api.stream_api import StreamApi
from broker.cluster.node import JetStreamNode, Spawn
from broker.cluster.observe import jsz as monitoring
from broker.cluster.observe.raftz import raftz
from broker.cluster.origins.mirroring import Followers
from broker.cluster.peers.mesh import Mesh
from broker.config.options import JetStreamOptions
from broker.scan.server import Scans, ScanSource
from broker.server.services import BulkReader, Document, Query, StartFailed
from raft.store.log_store import StoreError

if TYPE_CHECKING:
    from broker.server.server import Server

logger = logging.getLogger("jetraft.cluster")


@dataclass(slots=True)
class JetStream:
    """Built by `open_jetstream`; started once the mesh is up."""

    node: JetStreamNode
    api: ApiService
    scans: Scans = field(default_factory=Scans)

    def start(self) -> None:
        self.node.start()

    async def stop(self) -> None:
        await self.node.stop()

    def jsz(self, query: Query) -> Document:
        return monitoring.jsz(self.node, self.api, query)

    def raftz(self, query: Query) -> Document:
        return raftz(self.node, query)

    def healthz(self, query: Query) -> tuple[int, Document]:
        return monitoring.healthz(self.node, query)

    def metrics(self) -> list[monitoring.Gauge]:
        return monitoring.metrics(self.node)

    def varz(self) -> Document:
        document = self.jsz({})
        return {"config": document["config"], "stats": {k: document[k] for k in _STATS}}

    async def scan(self, connection: BulkReader, request_json: bytes) -> None:
        def find(stream: str) -> ScanSource | None:
            assignment = self.node.meta.get(connection.account.name, stream)
            replica = self.node.replicas.get(assignment.group) if assignment is not None else None
            if replica is None:
                return None
            return ScanSource(replica.stream.store, str(replica.group))

        await self.scans.serve(connection.queue, connection.drained, request_json, find)


def open_jetstream(
    server: Server,
    mesh: Mesh,
    options: JetStreamOptions,
    *,
    expected_nodes: Callable[[], int],
    spawn: Spawn,
) -> JetStream:
    """Raises StartFailed when the store cannot be had."""
    directory = store_directory(options.store_dir)
    node = JetStreamNode(
        server=server, mesh=mesh, options=options, expected_nodes=expected_nodes, spawn=spawn
    )
    try:
        node.open(directory)
    except StoreError as error:
        raise StartFailed(f"Can't start JetStream: {error}") from error
    api = ApiService(node, LeaderApi(node), StreamApi(node))
    api.start()
    plans = PlanService(node)
    plans.start()
    with_jetstream = set(options.accounts or (GLOBAL_ACCOUNT,))
    for name in [GLOBAL_ACCOUNT, server.options.system_account,
                 *(one.name for one in server.options.accounts)]:  # fmt: skip
        account = server.account(name)
        if name in with_jetstream:
            api.serve(account)
            plans.serve(account)
        else:
            NoJetStream(server.router, account, options.domain.encode()).start()
    Followers(node).start()
    logger.info("Starting JetStream")
    logger.info('  Store Directory: "%s"', directory)
    log = logger.info if options.flush_interval_s is None else logger.warning
    log("  %s", options.sync_sentence)
    return JetStream(node, api)


_STATS = ("memory", "storage", "accounts", "ha_assets", "api")


def store_directory(configured: str) -> Path:
    """The directory of the data, made if it is not there. Raises StartFailed."""
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
