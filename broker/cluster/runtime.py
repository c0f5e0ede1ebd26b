"""Everything behind the core server: the cluster and JetStream, built from the options.

Owns: start and stop order, and what monitoring is told.
May not touch: how any of it works; this is wiring.
Spec: the server's runtime seam (broker/server/runtime.py); core sheet 7 for the documents."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.accounts import GLOBAL_ACCOUNT
from broker.cluster.api import ApiService
from broker.cluster.leader_api import LeaderApi
from broker.cluster.mesh import Mesh
from broker.cluster.mirroring import Mirrors
from broker.cluster.monitoring import healthz, jsz, metrics
from broker.cluster.node import JetStreamNode
from broker.cluster.planning import PlanService
from broker.config.options import Options
from broker.jetstream.versioning import API_LEVEL
from broker.scan.server import Scans, ScanSource
from broker.server.runtime import Document, Query, StartFailed
from raft import node_id
from raft.store import StoreError

if TYPE_CHECKING:
    from broker.server.connection import Connection
    from broker.server.server import Server

logger = logging.getLogger("jetraft.cluster")


def build(options: Options) -> Runtime:
    """Called by the server when the options ask for a cluster or JetStream."""
    if options.jetstream is not None and options.cluster is not None:
        if not options.server_name:
            raise StartFailed("jetstream cluster requires `server_name` to be set")
        if not options.cluster.name:
            raise StartFailed("jetstream cluster requires `cluster.name` to be set")
    return Runtime(options)


class Runtime:
    """Implements broker.server.runtime.JetStreamRuntime."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.mesh: Mesh | None = None
        self.node: JetStreamNode | None = None
        self.api: ApiService | None = None
        self.scans = Scans()

    async def start(self, server: Server) -> None:
        options = self.options
        cluster = options.cluster
        # A server without a cluster may change its name: its data is not anybody else's.
        name = STANDALONE if cluster is None else options.server_name or server.name
        cluster_name = cluster.name if cluster is not None and cluster.name else STANDALONE

        def spawn(work: Awaitable[None], task_name: str) -> None:
            server.spawn(_coroutine(work), name=task_name)

        self.mesh = Mesh(
            node=node_id(name),
            name=name,
            cluster=cluster_name,
            server=server,
            options=cluster,
            spawn=spawn,
            hello={"urls": server.client_urls(), "client": client_address(server)},
        )
        if options.jetstream is not None:
            self._open_jetstream(server, spawn)
        await self._start_mesh()
        if self.node is not None:
            self.node.start()

    def _open_jetstream(self, server: Server, spawn: Any) -> None:
        assert self.mesh is not None
        assert self.options.jetstream is not None
        started = time.monotonic()
        directory = store_directory(self.options.jetstream.store_dir)
        self.node = JetStreamNode(
            server=server,
            mesh=self.mesh,
            options=self.options.jetstream,
            expected_nodes=self._expected_nodes,
            spawn=spawn,
        )
        try:
            self.node.open(directory)
        except StoreError as error:
            raise StartFailed(f"Can't start JetStream: {error}") from error
        self.api = ApiService(self.node, LeaderApi(self.node))
        self.api.start(server.account(GLOBAL_ACCOUNT))
        PlanService(self.node).start(server.account(GLOBAL_ACCOUNT))
        Mirrors(self.node).start()
        logger.info("Starting JetStream")
        logger.info('  Store Directory: "%s"', directory)
        logger.info("  Every ack waits for fsync on a majority of replicas")
        logger.debug("store opened in %.3f s", time.monotonic() - started)

    async def _start_mesh(self) -> None:
        assert self.mesh is not None
        try:
            await self.mesh.start()
        except OSError as error:
            cluster = self.options.cluster
            assert cluster is not None
            shown = f"{cluster.host}:{cluster.port}"
            raise StartFailed(f"Error listening on router port: {shown}, {error}") from error
        if self.mesh.transport is not None and self.options.cluster is not None:
            logger.info("Cluster name is %s", self.mesh.cluster)
            host = self.options.cluster.host
            logger.info("Listening for route connections on %s:%d", host, self.mesh.transport.port)

    def _expected_nodes(self) -> int:
        """How many nodes found the cluster: ours and every configured route that is not us."""
        if self.options.cluster is None:
            return 1
        assert self.mesh is not None
        assert self.mesh.transport is not None
        return 1 + self.mesh.transport.foreign_seeds()

    async def stop(self) -> None:
        if self.node is not None:
            await self.node.stop()
        if self.mesh is not None:
            await self.mesh.stop()

    def lame_duck(self) -> None:
        if self.mesh is not None:
            self.mesh.tell(urls=[])
        if self.node is not None:
            self.node.hand_over()

    # -- what the server and its monitor ask ----------------------------------------------------

    def on_connect_info(self) -> Document:
        info: Document = {}
        if self.options.jetstream is not None:
            info |= {"jetstream": True, "api_lvl": API_LEVEL}
            if self.options.jetstream.domain:
                info["domain"] = self.options.jetstream.domain
        if self.options.cluster is not None and self.mesh is not None:
            info["cluster"] = self.mesh.cluster
        return info

    def jsz(self, query: Query) -> Document:
        return jsz(self.node, self.api, query)

    def healthz(self, query: Query) -> tuple[int, Document]:
        return healthz(self.node, query)

    def varz_jetstream(self) -> Document:
        if self.node is None or self.api is None:
            return {}
        document = jsz(self.node, self.api, {})
        return {"config": document["config"], "stats": {k: document[k] for k in _STATS}}

    def routez(self) -> Document:
        peers = self.mesh.peers() if self.mesh is not None else []
        routes = [
            {
                "rid": position,
                "remote_id": f"{peer.node:016x}",
                "remote_name": peer.name,
                "did_solicit": True,
                "is_configured": True,
                "ip": peer.host,
                "port": peer.port,
            }
            for position, peer in enumerate(peers, 1)
            if peer.connected
        ]
        return {"num_routes": len(routes), "routes": routes}

    def metrics(self) -> list[tuple[str, str, dict[str, str], float]]:
        return metrics(self.node, self.mesh)

    def ports(self) -> dict[str, int]:
        if self.mesh is None or self.mesh.transport is None:
            return {}
        return {"cluster": self.mesh.transport.port}

    async def scan(self, connection: Connection, request_json: bytes) -> None:
        def find(stream: str) -> ScanSource | None:
            if self.node is None:
                return None
            assignment = self.node.meta.get(connection.account.name, stream)
            replica = self.node.replicas.get(assignment.group) if assignment is not None else None
            if replica is None:
                return None
            return ScanSource(replica.stream.store, str(replica.group))

        await self.scans.serve(connection.queue, connection.drained, request_json, find)


def client_address(server: Server) -> str:
    """Where scans reach this node: an advertised address, or the bound one."""
    urls = server.client_urls()
    if urls:
        return urls[0]
    host = "127.0.0.1" if server.host in _WILDCARDS else server.host
    return f"{host}:{server.port}"


STANDALONE = "standalone"
_WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound
_STATS = ("memory", "storage", "accounts", "ha_assets", "api")


async def _coroutine(work: Awaitable[None]) -> None:
    await work


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
