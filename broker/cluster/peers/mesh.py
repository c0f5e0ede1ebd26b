"""The links between the nodes of one cluster, as the broker uses them.

Owns: the transport, the set of connected peers, the hello that peers get, interest and calls.
May not touch: Raft groups and streams; these register their own channels (channels.py).
All frames of the broker to a peer take one link, in order: interest first, then the messages and
calls that depend on it.
Spec: NATS clustering: INFO `connect_urls` lists the client URLs of all nodes."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from broker.cluster.peers.channels import (
    CHANNEL_DELIVER,
    CHANNEL_INTEREST,
    CHANNEL_ROUTED,
    CHANNEL_RPC,
)
from broker.cluster.peers.interest import Interest
from broker.cluster.peers.route_compression import RouteCompression
from broker.cluster.peers.route_rules import RouteRules, shown
from broker.cluster.peers.rpc import Rpc
from broker.cluster.peers.unreachable_routes import report_unreachable
from broker.config.file.values import BadValue, route_address, split_address
from broker.server.client.tls import renew, route_contexts
from broker.server.process.listening import has_port, join_host_port
from broker.server.services import StartFailed
from raft import NodeId
from raft.transport.transport import Peer, Transport, TransportLimits

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.config.options import ClusterOptions
    from broker.server.routing.router import Router
    from broker.server.tracing.tracing import Tracing

logger = logging.getLogger("jetraft.cluster")

PeerCallback = Callable[[Peer, bool], None]
STRANGER_WITHIN_S = 30.0  # refusals are reported this long; a running node retries every second
STRANGERS_MAX = 64


class ClusteredServer(Protocol):
    """The server, as far as the mesh needs it."""

    router: Router
    tracing: Tracing

    def account(self, name: str) -> Account: ...

    def set_cluster_urls(self, urls: list[str], ws_urls: Sequence[str] = ()) -> None: ...

    def set_leaf_urls(self, urls: list[str]) -> None: ...


@dataclass(slots=True)
class Mesh:
    """Built and started before the client port opens."""

    node: NodeId
    name: str
    cluster: str
    server: ClusteredServer
    options: ClusterOptions | None
    spawn: Callable[[Awaitable[None], str], object]
    open_transport: Callable[..., Transport] = Transport
    hello: dict[str, Any] = field(default_factory=dict)
    transport: Transport | None = None
    _contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None  # accepting, dialing
    compression: RouteCompression = field(init=False)
    interest: Interest = field(init=False)
    rpc: Rpc = field(init=False)
    _on_peer: list[PeerCallback] = field(default_factory=list)
    _up: dict[NodeId, float] = field(default_factory=dict)  # wall time of the connect
    # Servers of another cluster with our cluster's name: when each was refused last.
    _strangers: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        server = self.server
        self.interest = Interest(server.router, self.send, server.account, server.tracing)
        server.tracing.peer_name = lambda peer: self.peer_name(NodeId(peer))
        self.rpc = Rpc(self.node, self._send_call, self.spawn)
        if self.options is None:
            return
        self.compression = RouteCompression(
            self.options.compression, self._compression_of, self.rtt_s
        )
        self.hello["compression"] = self.options.compression.mode
        self._restrict(self.options)
        tls = self.options.tls
        self._contexts = None if tls is None else route_contexts(tls)
        login = (self.options.user, self.options.password)  # a password alone is enough
        self.transport = self.open_transport(
            node=self.node,
            name=self.name,
            cluster=self.cluster,
            listen_host=self.options.host,
            listen_port=max(self.options.port, 0),
            routes=[route_address(url) for url in self.options.routes],
            credentials=login if any(login) else None,
            tls=self._contexts,
            hello=lambda: self.hello,
            on_peer=self._peer_changed,
            advertise=_advertised(self.options),
            objection=self._objection,
            limits=_limits(self.options),
            codec=self.compression,
        )
        self.transport.register(CHANNEL_INTEREST, self.interest.received_interest)
        self.transport.register(CHANNEL_ROUTED, self.interest.received_routed)
        self.transport.register(CHANNEL_DELIVER, self.interest.received_deliver)
        self.transport.register(CHANNEL_RPC, self.rpc.received)

    @property
    def has_routes(self) -> bool:
        """Whether there are peers to fetch everything from."""
        return self.options is not None and bool(self.options.routes)

    async def start(self) -> None:
        self.interest.start()
        if self.transport is not None:
            await self.transport.start()
            if self.options is not None and self.options.routes:
                work = report_unreachable(self.transport.unreachable, len(self.options.routes))
                self.spawn(work, "unreachable routes")

    def reconfigure(self, options: ClusterOptions) -> None:
        """The routes may have changed, and the contents of the certificates. Raises StartFailed."""
        if self.transport is None or self.options is None:
            return
        if options.tls is not None and self._contexts is not None:
            route_contexts(options.tls)  # may raise: before anything has changed
            for context in self._contexts:
                renew(context, options.tls)
        if options == self.options:
            return
        if options.permissions != self.options.permissions:
            self._restrict(options)
            self.tell()
        if options.compression != self.options.compression:
            self.compression.configure(options.compression)
            self.tell(compression=options.compression.mode)
        self.options = options
        self.transport.reseed([route_address(url) for url in options.routes])

    def _restrict(self, options: ClusterOptions) -> None:
        rules = options.permissions
        self.interest.restrict(None if rules is None else RouteRules(rules))
        self.hello["permissions"] = {} if rules is None else shown(rules)

    def _compression_of(self, node: NodeId) -> str:
        known = self.transport.peers().get(node) if self.transport is not None else None
        told = known.hello.get("compression") if known is not None else None
        return told if isinstance(told, str) else ""

    async def stop(self) -> None:
        if self.transport is not None:
            await self.transport.stop()

    def on_peer(self, callback: PeerCallback) -> None:
        self._on_peer.append(callback)

    def register(self, channel: int, on_frame: Callable[[NodeId, bytes], None]) -> None:
        if self.transport is not None:
            self.transport.register(channel, on_frame)

    def send(self, to: NodeId, channel: int, frame: bytes) -> bool:
        return self.transport is not None and self.transport.send(to, channel, frame)

    def broadcast(self, channel: int, frame: bytes) -> None:
        for peer in self._up:
            self.send(peer, channel, frame)

    def connected(self, node: NodeId) -> bool:
        return node == self.node or node in self._up

    def connected_since(self, node: NodeId) -> float:
        """Wall time; 0 while it is not connected."""
        return self._up.get(node, 0.0)

    def silent_ns(self, node: NodeId) -> int:
        """How long ago the last frame of the node arrived; 0 if none ever did."""
        heard = self.transport.heard_at(node) if self.transport is not None else 0.0
        return int((time.monotonic() - heard) * 1e9) if heard else 0

    def rtt_s(self, node: NodeId) -> float:
        return self.transport.rtt_s(node) if self.transport is not None else 0.0

    def pending_bytes(self, node: NodeId) -> int:
        return self.transport.pending_bytes(node) if self.transport is not None else 0

    def peers(self) -> list[Peer]:
        return list(self.transport.peers().values()) if self.transport is not None else []

    def peer_name(self, node: NodeId) -> str:
        if node == self.node:
            return self.name
        known = self.transport.peers().get(node) if self.transport is not None else None
        return known.name if known is not None else ""

    def tags(self, node: NodeId) -> list[str]:
        """The tags of a server (`server_tags`); empty if unknown."""
        if node == self.node:
            return _texts(self.hello.get("tags"))
        known = self.transport.peers().get(node) if self.transport is not None else None
        return _texts(known.hello.get("tags")) if known is not None else []

    def fact(self, node: NodeId, name: str) -> int:
        """A number in the hello of a node; 0 if it is missing."""
        if node == self.node:
            told = self.hello.get(name)
        else:
            known = self.transport.peers().get(node) if self.transport is not None else None
            told = known.hello.get(name) if known is not None else None
        return told if isinstance(told, int) else 0

    def feature_level(self, node: NodeId) -> int:
        """The newest feature level that a node supports."""
        return self.fact(node, "feature_level")

    def tells_clock(self, node: NodeId) -> bool:
        """Whether the clock of a node can be known; a node of an earlier version sends no clock
        frames."""
        known = self.transport.peers().get(node) if self.transport is not None else None
        return known is None or bool(known.hello.get("clock"))

    def stores(self, node: NodeId) -> bool:
        """Whether a peer has JetStream. A peer whose hello does not say counts as one that has."""
        known = self.transport.peers().get(node) if self.transport is not None else None
        return known is None or known.hello.get("jetstream") is not False

    def tell(self, **facts: Any) -> None:
        """Change the hello, for present and future peers."""
        self.hello.update(facts)
        if self.transport is not None:
            self.transport.update_hello()

    def unreachable(self) -> list[str]:
        """The configured routes without links, each with the reason."""
        return self.transport.unreachable() if self.transport is not None else []

    def strangers(self) -> list[str]:
        """Servers that were refused recently: they belong to another cluster of the same name."""
        since = time.monotonic() - STRANGER_WITHIN_S
        return sorted(name for name, refused in self._strangers.items() if refused >= since)

    def _objection(self, name: str, hello: dict[str, Any]) -> str | None:
        """Why to refuse a peer: it belongs to another cluster that was founded under the same name,
        whose group ids and terms mean nothing here. The hello of a node that belongs to no cluster
        yet contains no founding."""
        ours, theirs = self.hello.get("founding"), hello.get("founding")
        if not ours or not theirs or ours == theirs:
            self._strangers.pop(name, None)
            return None
        if name in self._strangers or len(self._strangers) < STRANGERS_MAX:
            self._strangers[name] = time.monotonic()
        return (
            f'server "{name}" and server "{self.name}" belong to two clusters that were founded '
            f'apart under the name "{self.cluster}": clear the store directory of one of them to '
            "let it join the other"
        )

    def _send_call(self, to: NodeId, frame: bytes) -> bool:
        self.interest.flush()
        return self.send(to, CHANNEL_RPC, frame)

    def _peer_changed(self, peer: Peer, connected: bool) -> None:  # noqa: FBT001
        node = peer.node
        if connected and self.transport is not None:
            objection = self._objection(peer.name, peer.hello)
            if objection is not None:  # it founded another cluster while it was connected
                logger.error("disconnecting: %s", objection)
                self.transport.disconnect(node)
                return
        fresh = connected and node not in self._up
        if fresh:
            self._up[node] = time.time()
            logger.info("node %s is connected", peer.name)
            self.interest.peer_joined(node)
        elif not connected and node in self._up:
            del self._up[node]
            logger.warning("node %s is disconnected", peer.name)
            self.interest.peer_left(node)
            self.rpc.peer_lost(node)
        for callback in self._on_peer:
            callback(peer, connected)
        self._tell_clients()

    def _tell_clients(self) -> None:
        urls: list[str] = []
        ws_urls: list[str] = []
        leaf_urls: list[str] = []
        for peer in self.peers():
            if peer.connected:
                urls.extend(_texts(peer.hello.get("urls")))
                ws_urls.extend(_texts(peer.hello.get("ws_urls")))
                leaf_urls.extend(_texts(peer.hello.get("leaf_urls")))
        loop = asyncio.get_running_loop()
        loop.call_soon(self.server.set_cluster_urls, urls, ws_urls)
        loop.call_soon(self.server.set_leaf_urls, leaf_urls)


def _limits(options: ClusterOptions) -> TransportLimits:
    limits = TransportLimits()
    return replace(
        limits,
        ping_seconds=options.ping_interval_ns / 1e9 or limits.ping_seconds,
        quiet_intervals_max=options.ping_max or limits.quiet_intervals_max,
    )


def _texts(value: object) -> list[str]:
    """A peer's hello is not trusted: only the strings of a list are taken."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _advertised(options: ClusterOptions) -> tuple[str, int] | None:
    """The address that peers should dial, if it differs from the one we listen on.

    Raises StartFailed."""
    address = options.advertise
    if not address:
        return None
    try:
        full = address if has_port(address) else join_host_port(address, options.port)
        return split_address(full)
    except BadValue as error:
        raise StartFailed(f"cluster advertise: {error}") from error
