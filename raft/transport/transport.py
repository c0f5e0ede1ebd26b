"""Links between the nodes of a cluster: every node opens two connections to every other node.

Owns: the listener, the lifetime of all links, frames to and from channels.
May not touch: what frames mean; Raft, streams.
Spec: two outgoing connections per peer (control: what must not wait; bulk: the rest). Accepted
connections are only read, except for the handshake and pongs. Order is kept per link. One seed is
enough: hellos carry the addresses of all known nodes. Channels: 0 the link itself, 1 raft control,
2 raft bulk, 3 snapshots, 16 and up belong to the broker.

Where to find the parts:

    handshake, codec         the bytes of the peer handshake and of Raft messages
    link, open_links         one connection; all of them
    acceptor                 connections that others open to us
    handshake_slots          how many of them may be unfinished
    dialer, dial_plan        connections that we open; which addresses we dial
    peer_table               the other nodes, and our links to them
    refusals                 what was refused, counted and logged"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raft.transport.acceptor import Acceptor
from raft.transport.dial_plan import DialPlan
from raft.transport.frame_compression import COMPRESSED, COMPRESSED_SINCE, FrameCodec
from raft.transport.frame_guard import FrameError
from raft.transport.handshake import (
    NEWS,
    PING,
    VERSIONS,
    LinkClass,
    LocalPeer,
    News,
    PeerCredentials,
    PeerVersions,
    frame,
)
from raft.transport.handshake_slots import source_of
from raft.transport.limits import TransportLimits
from raft.transport.link import LINK_CHANNEL, Link
from raft.transport.open_links import OpenLinks
from raft.transport.peer_table import Peer, PeerTable
from raft.transport.refusals import Refusals
from raft.types import NodeId

__all__ = ["Peer", "Transport", "TransportLimits", "TransportStatistics"]

_log = logging.getLogger("raft.transport")
RAFT_CONTROL: Final = 1
RAFT_BULK: Final = 2
SNAPSHOTS: Final = 3
CLOCK: Final = 4
_WILDCARDS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True)
class TransportStatistics:
    peers: int
    connected: int
    sent_frames: int
    sent_bytes: int
    received_bytes: int
    dropped_frames: int
    pending_bytes: int
    # Connections that we closed, by reason: a RefusalCode of the handshake; "frame": a bad length
    # or checksum; "tls"; "handshake": not finished in time, or before its slot was needed.
    refused: dict[str, int]


class Transport:
    """Callbacks run on the loop. `on_peer(peer, True)` is called when both our links to it are up
    and again when its hello changes; `on_peer(peer, False)` when they are lost."""

    def __init__(
        self,
        *,
        node: NodeId,
        name: str,
        cluster: str,
        listen_host: str,
        listen_port: int,
        routes: Sequence[tuple[str, int]] = (),
        credentials: tuple[str, str] | None = None,
        tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
        hello: Callable[[], dict[str, Any]] = dict,
        on_peer: Callable[[Peer, bool], None] | None = None,
        advertise: tuple[str, int] | None = None,
        limits: TransportLimits = TransportLimits(),  # noqa: B008 - frozen
        versions: PeerVersions = VERSIONS,
        objection: Callable[[str, dict[str, Any]], str | None] = lambda _name, _hello: None,
        codec: FrameCodec | None = None,
    ) -> None:
        """`tls`: the contexts for accepting and for dialing. `advertise`: the address that others
        should dial, if it is not the one we listen on. `objection`: why a peer with this name and
        this hello is refused; None: it is not. `codec`: compresses frames."""
        self._codec = codec
        self.node = node
        self.name = name
        self.limits = limits
        self._listen = (listen_host, listen_port)
        self._advertise = advertise
        self._ourselves = LocalPeer(
            node,
            name,
            cluster,
            PeerCredentials(*credentials) if credentials else None,
            hello,
            versions=versions,
            objection=objection,
        )
        self._refusals = Refusals(name)
        self._open_links = OpenLinks(self._refusals)
        self._peers = PeerTable(
            self._ourselves,
            on_peer=on_peer,
            seed_sources=frozenset(source_of(host) for host, _ in routes),
        )
        self._plan = DialPlan(
            peers=self._peers,
            open_links=self._open_links,
            refusals=self._refusals,
            limits=limits,
            routes=routes,
            tls=tls[1] if tls else None,
        )
        self._acceptor = Acceptor(
            peers=self._peers,
            addresses=self._plan,
            open_links=self._open_links,
            refusals=self._refusals,
            limits=limits,
            deliver=self._deliver,
            announce=self.update_hello,
            tls=tls[0] if tls else None,
        )
        self._channels: dict[int, tuple[Callable[[NodeId, Any], None], bool]] = {}
        self._bound_port = listen_port
        self._runner: asyncio.Task[None] | None = None
        self._heard: dict[NodeId, float] = {}

    @property
    def port(self) -> int:
        """The port we listen on, once started."""
        return self._ourselves.port if self._advertise is None else self._bound_port

    async def start(self) -> None:
        """Listen, then start to dial. Raises OSError when the port is not available."""
        host, port = self._listen
        self._bound_port = await self._acceptor.listen(host, port)
        own = ("" if host in _WILDCARDS else host, self._bound_port)
        self._ourselves.host, self._ourselves.port = self._advertise or own
        started = asyncio.Event()
        self._runner = asyncio.create_task(self._run(started), name=f"transport {self.name}")
        await started.wait()

    async def stop(self) -> None:
        """Close all links; the port is free afterwards."""
        if self._runner is None:
            return
        self._acceptor.close()
        self._plan.close()
        self._runner.cancel()
        await asyncio.wait([self._runner])
        self._acceptor.abort()
        await self._open_links.drain()
        self._runner = None

    async def _run(self, started: asyncio.Event) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                self._acceptor.tasks = tasks
                self._plan.open(tasks)
                started.set()
                await self._watch()
        except Exception:
            _log.critical("%s: the transport has stopped", self.name, exc_info=True)
            raise
        finally:
            self._acceptor.tasks = None
            self._plan.close()
            started.set()

    async def _watch(self) -> None:
        """Send pings, close dead links, redial seeds. However late it runs, it counts as one
        interval."""
        ping = bytes((PING,))
        while True:
            await asyncio.sleep(self.limits.ping_seconds)
            outgoing = [link for pair in self._peers.links.values() for link in pair]
            for link in outgoing:
                link.pinged_at = link.pinged_at or time.monotonic()
                link.send(LINK_CHANNEL, ping)
            for link in [*outgoing, *self._acceptor.links.values()]:
                link.quiet_intervals += 1
                if link.quiet_intervals > self.limits.quiet_intervals_max:
                    link.abort(TimeoutError("no traffic on the link"))
            self._plan.dial_seeds()
            self._open_links.fold_counts()
            for node in self._peers.links:
                self.heard_at(node)  # caches the result for when its links are closed

    def register(
        self, channel: int, on_frame: Callable[[NodeId, Any], None], *, borrowed: bool = False
    ) -> None:
        """`on_frame(sender, payload)` is called for every frame of the channel. `borrowed`: the
        payload is a memoryview that is valid during the call, otherwise bytes. An exception is
        logged and closes the connection of the frame."""
        self._channels[channel] = (on_frame, borrowed)

    def send(
        self, to: NodeId, channel: int, payload: bytes | Sequence[bytes], *, control: bool = False
    ) -> bool:
        """False: not connected, or the queue is full; nothing was queued. Appends and their answers
        are written immediately, not at the end of this turn of the loop: in the rest of the turn a
        leader writes its own log, and a follower applies entries."""
        pair = self._peers.links.get(to)
        if pair is None:
            return False
        link = pair[0 if control else 1]
        packed = None
        if self._codec is not None and not control and link.version >= COMPRESSED_SINCE:
            packed = self._codec.pack(to, payload)
        if packed is None:
            sent = link.send(channel, payload)
        else:
            sent = link.send(channel | COMPRESSED, packed)
        if channel == RAFT_BULK:
            link.flush()
        return sent

    def reseed(self, routes: Sequence[tuple[str, int]]) -> None:
        """The configured routes have changed."""
        self._peers.expect(frozenset(source_of(host) for host, _ in routes))
        self._plan.reseed(routes)

    def seed_nodes(self) -> set[NodeId] | None:
        """The other nodes that the configured routes lead to. None: one was never reached."""
        return self._plan.seed_nodes()

    def unreachable(self) -> list[str]:
        """The configured routes without links, each with the reason, for the operator."""
        return self._plan.unreachable()

    def peers(self) -> dict[NodeId, Peer]:
        return dict(self._peers.peers)

    def connected_peers(self) -> set[NodeId]:
        return set(self._peers.links)

    def connected(self, node: NodeId) -> bool:
        return node in self._peers.links

    def heard_at(self, node: NodeId) -> float:
        """When the last bytes of the node arrived, by the monotonic clock; 0: never."""
        pair = self._peers.links.get(node, ())
        links = [*pair, *(self._acceptor.links.get((node, kind)) for kind in LinkClass)]
        heard = max((link.heard_at for link in links if link is not None), default=0.0)
        self._heard[node] = max(heard, self._heard.get(node, 0.0))
        return self._heard[node]

    def rtt_s(self, node: NodeId) -> float:
        """The RTT of the last ping on our control link; 0: none was answered yet."""
        pair = self._peers.links.get(node)
        return pair[0].rtt_s if pair else 0.0

    def link_pair_number(self, node: NodeId) -> int:
        """0: not connected. The number changes with every new connection: what was sent over an
        earlier pair of links may not have arrived."""
        return self._peers.link_pair_numbers.get(node, 0)

    def pending_bytes(self, node: NodeId) -> int:
        """Bytes queued on our bulk link to the node."""
        pair = self._peers.links.get(node)
        return pair[1].pending_bytes() if pair else 0

    def update_hello(self) -> None:
        """Call `hello()` again and send the result to every peer."""
        news = frame(NEWS, News(self._peers.known(), self._ourselves.details()))
        for control, _ in self._peers.links.values():
            control.send(LINK_CHANNEL, news)

    def disconnect(self, node: NodeId) -> None:
        """Close all links with the node. It may connect again, if there is no objection."""
        accepted = (self._acceptor.links.get((node, kind)) for kind in LinkClass)
        for link in (*self._peers.links.get(node, ()), *accepted):
            if link is not None:
                link.abort()

    def forget(self, node: NodeId) -> None:
        """The node has left the cluster: close its links and, unless it is a seed, stop dialing."""
        self._plan.forget(node)
        self._peers.forget(node)

    def statistics(self) -> TransportStatistics:
        outgoing = [link for pair in self._peers.links.values() for link in pair]
        standing = [*outgoing, *self._acceptor.links.values()]
        total = self._open_links.total_counts(standing)
        return TransportStatistics(
            peers=len(self._peers.peers),
            connected=len(self._peers.links),
            sent_frames=total.sent_frames,
            sent_bytes=total.sent_bytes,
            received_bytes=total.received_bytes,
            dropped_frames=total.dropped_frames,
            pending_bytes=sum(link.pending_bytes() for link in standing),
            refused=dict(self._refusals.counts),
        )

    def _deliver(self, link: Link, channel: int, view: memoryview) -> None:
        if channel & COMPRESSED and link.version >= COMPRESSED_SINCE:
            channel, view = channel ^ COMPRESSED, self._unpacked(view)
        handler = self._channels.get(channel)
        if handler is None:
            return  # a channel of a newer version: ignore it
        on_frame, borrowed = handler
        try:
            on_frame(link.node, view if borrowed else bytes(view))
        except Exception as error:  # noqa: BLE001 - ends this connection, nothing else
            name = self._peers.name(link.node)
            _log.exception("%s: frame from %s on channel %d failed", self.name, name, channel)
            link.abort(error)

    def _unpacked(self, view: memoryview) -> memoryview:
        """Raises FrameError."""
        if self._codec is None:
            raise FrameError("it sent a compressed frame, and this node has no codec")
        try:
            return memoryview(self._codec.unpack(view, self.limits.frame_bytes_max))
        except ValueError as error:
            raise FrameError(f"compressed frame: {error}") from error
