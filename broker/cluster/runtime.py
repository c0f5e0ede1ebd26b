"""The runtime behind the core server: the mesh of the cluster and JetStream, built from options.

Owns: their start and stop order, and what monitoring reads of them.
May not touch: how any of it works; this is wiring.
Spec: broker/main.py (ClusterRuntime); nats-server monitoring for the documents."""

from __future__ import annotations

import logging
import time
from asyncio import iscoroutine
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from broker.cluster.meta.feature_level import NEWEST_LEVEL
from broker.cluster.peers.mesh import Mesh
from broker.cluster.platform import Platform
from broker.config.options import Options
from broker.server.metric_samples import Exposition, Sample, gauge
from broker.server.process.times import short_span, span, timestamp
from broker.server.services import BulkReader, Document, Query, StartFailed
from broker.subjects import Steps
from raft.types import NodeId, node_id

if TYPE_CHECKING:
    from broker.cluster.assembly import JetStream, OpenedStore
    from broker.server.server import Server
    from raft.transport.transport import Peer

logger = logging.getLogger("jetraft.cluster")

STANDALONE = "standalone"
PEERS_CONNECTED = gauge("peers_connected", "Nodes this one is linked to.")
REAL_PLATFORM = Platform()
_WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound


def build(options: Options) -> Runtime:
    """Called by the server when the options ask for a cluster or JetStream."""
    if options.jetstream is not None and options.cluster is not None:
        if not options.server_name:
            raise StartFailed("jetstream cluster requires `server_name` to be set")
        if not options.cluster.name:
            raise StartFailed("jetstream cluster requires `cluster.name` to be set")
        if not options.cluster.routes:
            # It would found a cluster of its own, apart from the nodes whose routes lead to it.
            raise StartFailed("JetStream cluster requires configured routes")
    if options.jetstream is not None:
        level = options.jetstream.feature_level
        if level is not None and not 0 <= level <= NEWEST_LEVEL:
            raise StartFailed(
                f"jetstream feature_level {level} is not known: this version of JetRaft has levels "
                f"0 to {NEWEST_LEVEL}"
            )
        from broker.cluster.limits.machine_limits import of_this_machine

        options = replace(options, jetstream=of_this_machine(options.jetstream))
    return Runtime(options)


class Runtime:
    """Implements broker.main.ClusterRuntime."""

    def __init__(self, options: Options, platform: Platform = REAL_PLATFORM) -> None:
        self.options = options
        self._platform = platform
        self.mesh: Mesh | None = None
        self.jetstream: JetStream | None = None

    async def start(self, server: Server) -> None:
        cluster = self.options.cluster

        def spawn(work: Awaitable[None], task_name: str) -> None:
            server.spawn(work if iscoroutine(work) else _coroutine(work), name=task_name)

        # Without a cluster, the server may change its name and keep its data.
        name = STANDALONE if cluster is None else self.options.server_name or server.name
        cluster_name = cluster.name if cluster is not None and cluster.name else STANDALONE
        store: OpenedStore | None = None
        if self.options.jetstream is not None:
            from broker.cluster.assembly import open_jetstream, open_store

            store = open_store(
                self.options.jetstream,
                self._platform,
                name=name,
                cluster=cluster_name,
                rebuilt=cluster is not None and bool(cluster.routes),
            )
        self.mesh = Mesh(
            node=store.node if store is not None else node_id(name),
            name=name,
            cluster=cluster_name,
            server=server,
            options=cluster,
            spawn=spawn,
            open_transport=self._platform.transport,
            hello={
                "id": server.id,
                # This node is advertised to clients once it is a member of the cluster.
                "urls": server.client_urls() if store is None else [],
                "ws_urls": server.ws_urls() if store is None else [],
                "leaf_urls": server.leaf_urls(),
                "client": client_address(server),
                "tags": list(self.options.server_tags),
                "clock": store is not None,
                "jetstream": store is not None,
            },
        )
        if store is not None and self.options.jetstream is not None:
            self.jetstream = open_jetstream(
                server,
                self.mesh,
                self.options.jetstream,
                store=store,
                expected_nodes=self._expected_nodes,
                spawn=spawn,
                platform=self._platform,
            )
        await self._start_mesh(self.mesh)
        if self.jetstream is not None:
            self.jetstream.start()

    def reconfigure(self, options: Options) -> None:
        if self.mesh is not None and options.cluster is not None:
            self.mesh.reconfigure(options.cluster)
        if self.jetstream is not None and options.jetstream is not None:
            self.jetstream.reconfigure(options.jetstream)

    async def _start_mesh(self, mesh: Mesh) -> None:
        cluster = self.options.cluster
        try:
            await mesh.start()
        except OSError as error:
            assert cluster is not None, "only a cluster listens"
            shown = f"{cluster.host}:{cluster.port}"
            raise StartFailed(f"Error listening on router port: {shown}, {error}") from error
        if mesh.transport is not None and cluster is not None:
            logger.info("Cluster name is %s", mesh.cluster)
            shown = f"{cluster.host}:{mesh.transport.port}"
            logger.info("Listening for route connections on %s", shown)

    def _expected_nodes(self) -> set[NodeId] | None:
        """The nodes that found the cluster together with this one: those that the routes lead to,
        except those without JetStream. None: some route was never reached."""
        if self.mesh is None or self.mesh.transport is None:
            return set()
        nodes = self.mesh.transport.seed_nodes()
        return None if nodes is None else {node for node in nodes if self.mesh.stores(node)}

    async def hand_over(self) -> None:
        if self.jetstream is not None:
            await self.jetstream.hand_over()

    def all_answered(self) -> bool:
        return self.jetstream is None or self.jetstream.all_answered()

    def hold_replies(self) -> None:
        if self.jetstream is not None:
            self.jetstream.hold_replies()

    def all_delivered(self) -> bool:
        return self.jetstream is None or self.jetstream.all_delivered()

    def serve_elsewhere(self) -> bool:
        return self.mesh is not None and any(peer.connected for peer in self.mesh.peers())

    async def stop(self) -> None:
        if self.jetstream is not None:
            await self.jetstream.stop()
        if self.mesh is not None:
            await self.mesh.stop()

    def lame_duck(self) -> None:
        if self.mesh is not None:
            self.mesh.tell(urls=[], ws_urls=[], leaf_urls=[])
        if self.jetstream is not None:
            self.jetstream.lame_duck()

    # -- what the server and its monitor read ---------------------------------------------------

    def held(self) -> int:
        return self.jetstream.held() if self.jetstream is not None else 0

    def on_connect_info(self) -> Document:
        info: Document = {}
        if self.options.jetstream is not None:
            from broker.jetstream.config.api_levels import API_LEVEL

            info |= {"jetstream": True, "api_lvl": API_LEVEL}
            if self.options.jetstream.domain:
                info["domain"] = self.options.jetstream.domain
        if self.options.cluster is not None and self.mesh is not None:
            info["cluster"] = self.mesh.cluster
        return info

    def jsz(self, query: Query) -> Steps[Document]:
        if self.jetstream is None:
            return {"disabled": True}
        return (yield from self.jetstream.jsz(query))

    def healthz(self, query: Query) -> Steps[tuple[int, Document]]:
        if self.jetstream is None:
            return 200, {"status": "ok"}
        return (yield from self.jetstream.healthz(query))

    def raftz(self, query: Query) -> Steps[Document]:
        return {} if self.jetstream is None else (yield from self.jetstream.raftz(query))

    def varz_jetstream(self) -> Steps[Document]:
        return {} if self.jetstream is None else (yield from self.jetstream.varz())

    def routez(self) -> Document:
        mesh = self.mesh
        peers = mesh.peers() if mesh is not None else []
        routes = [
            _route(mesh, peer, position)
            for position, peer in enumerate(peers, 1)
            if mesh is not None and peer.connected
        ]
        return {"num_routes": len(routes), "routes": routes}

    def metrics(self, into: Exposition) -> Iterator[None]:
        connected = sum(peer.connected for peer in self.mesh.peers()) if self.mesh else 0
        into.add([Sample(PEERS_CONNECTED, connected)])
        yield
        if self.jetstream is not None:
            yield from self.jetstream.metrics(into)

    def ports(self) -> dict[str, int]:
        if self.mesh is None or self.mesh.transport is None:
            return {}
        return {"cluster": self.mesh.transport.port}

    async def scan(self, connection: BulkReader, request_json: bytes) -> None:
        if self.jetstream is not None:
            await self.jetstream.scan(connection, request_json)
        else:
            connection.queue(b'-SCAN {"code":"NOSTREAM","message":"JetStream is off"}\r\n')


def _route(mesh: Mesh, peer: Peer, position: int) -> Document:
    """All links to a peer are shown as one route."""
    now, since = time.time(), mesh.connected_since(peer.node)
    silent_s = mesh.silent_ns(peer.node) / 1e9
    document: Document = {
        "rid": position,
        "remote_id": str(peer.hello.get("id", "")),
        "remote_name": peer.name,
        "did_solicit": True,
        "is_configured": True,
        "ip": peer.host,
        "port": peer.port,
        "start": timestamp(since),
        "last_activity": timestamp(now - silent_s),
        "rtt": short_span(mesh.rtt_s(peer.node)),
        "uptime": span(now - since),
        "idle": span(silent_s),
        "pending_size": mesh.pending_bytes(peer.node),
        "compression": mesh.compression.mode(peer.node),
    }
    told = peer.hello.get("permissions")
    if isinstance(told, dict):
        document |= {name: told[name] for name in ("import", "export") if name in told}
    sink = mesh.interest.sinks.get(peer.node)
    if sink is not None:
        document |= {
            "in_msgs": sink.messages_in,
            "out_msgs": sink.messages_out,
            "in_bytes": sink.bytes_in,
            "out_bytes": sink.bytes_out,
            "subscriptions": len(sink.subscriptions),
        }
    return document


async def _coroutine(work: Awaitable[None]) -> None:
    await work


def client_address(server: Server) -> str:
    """Where scans reach this node: the advertised address, or the bound one."""
    urls = server.client_urls()
    if urls:
        return urls[0]
    host = "127.0.0.1" if server.host in _WILDCARDS else server.host
    return f"{host}:{server.port}"
