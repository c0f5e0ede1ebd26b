"""Links between the nodes of a cluster: every node dials every other one, twice.

Owns: the listener, the life of all links, frames to and from channels.
May not touch: what frames mean; Raft, streams.
Spec: two outgoing connections per peer (control: what must not wait; bulk: the rest); accepted
connections are only read, but for the handshake and pongs. Order is kept per link. One seed is
enough: hellos carry the addresses of all known nodes. Channels: 1 raft control, 2 raft bulk,
3 snapshots, 16 and up belong to the broker; 0 is the link's own."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raft.transport.acceptor import Acceptor
from raft.transport.handshake import NEWS, PING, LinkClass, LocalPeer, News, PeerCredentials, frame
from raft.transport.link import LINK_CHANNEL, Link
from raft.transport.peer_table import Peer, PeerTable, TransportLimits
from raft.types import NodeId

__all__ = ["Peer", "Transport", "TransportLimits", "TransportStatistics"]

_log = logging.getLogger("raft.transport")
RAFT_CONTROL: Final = 1
RAFT_BULK: Final = 2
SNAPSHOTS: Final = 3
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
    # Connections we ended, and why: a RefusalCode of the handshake; "frame" for one with a bad
    # length or checksum; "tls"; "handshake" for none in time or too many at once.
    refused: dict[str, int]


class Transport:
    """Callbacks run on the loop. `on_peer(peer, True)` comes when both our links to it stand and
    again when its hello changes; `on_peer(peer, False)` when they are lost."""

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
    ) -> None:
        """`tls` is (for accepting, for dialling). `advertise` is the address others should dial
        when it is not the one we listen on."""
        self.node = node
        self.name = name
        self.limits = limits
        self._listen = (listen_host, listen_port)
        self._advertise = advertise
        self._ourselves = LocalPeer(
            node, name, cluster, PeerCredentials(*credentials) if credentials else None, hello
        )
        self._mesh = PeerTable(
            ourselves=self._ourselves,
            limits=limits,
            routes=routes,
            tls=tls[1] if tls else None,
            on_peer=on_peer,
        )
        self._acceptor = Acceptor(
            self._mesh,
            deliver=self._deliver,
            announce=self.update_hello,
            tls=tls[0] if tls else None,
        )
        self._channels: dict[int, tuple[Callable[[NodeId, Any], None], bool]] = {}
        self._bound_port = listen_port
        self._runner: asyncio.Task[None] | None = None
        self._heard: dict[NodeId, float] = {}
        self._ended = (0, 0, 0, 0)  # counts of links that are gone

    @property
    def port(self) -> int:
        """The port we listen on, once started."""
        return self._ourselves.port if self._advertise is None else self._bound_port

    async def start(self) -> None:
        """Listen, then begin to dial. Raises OSError when the port cannot be had."""
        host, port = self._listen
        self._mesh.stopping = False
        self._bound_port = await self._acceptor.listen(host, port)
        own = ("" if host in _WILDCARDS else host, self._bound_port)
        self._ourselves.host, self._ourselves.port = self._advertise or own
        started = asyncio.Event()
        self._runner = asyncio.create_task(self._run(started), name=f"transport {self.name}")
        await started.wait()

    async def stop(self) -> None:
        """All links are closed; the listener's port is free afterwards."""
        if self._runner is None:
            return
        self._acceptor.close()
        self._mesh.stopping = True
        self._runner.cancel()
        await asyncio.wait([self._runner])
        self._acceptor.abort()
        await self._mesh.drain()
        self._runner = None

    async def _run(self, started: asyncio.Event) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                self._mesh.tasks = tasks
                self._mesh.dial_seeds()
                started.set()
                await self._watch()
        except Exception:
            _log.critical("%s: the transport has stopped", self.name, exc_info=True)
            raise
        finally:
            self._mesh.tasks = None
            started.set()

    async def _watch(self) -> None:
        """Pings, dead links, seeds that lead nowhere. A late turn counts as one interval."""
        ping = bytes((PING,))
        while True:
            await asyncio.sleep(self.limits.ping_seconds)
            outgoing = [link for pair in self._mesh.links.values() for link in pair]
            for link in outgoing:
                link.send(LINK_CHANNEL, ping)
            for link in [*outgoing, *self._acceptor.links.values()]:
                link.quiet_intervals += 1
                if link.quiet_intervals > self.limits.quiet_intervals_max:
                    link.abort(TimeoutError("nothing was heard on the link"))
            self._mesh.dial_seeds()
            self._fold_counts()
            for node in self._mesh.links:
                self.heard_at(node)  # remembered for when its links are gone

    def register(
        self, channel: int, on_frame: Callable[[NodeId, Any], None], *, borrowed: bool = False
    ) -> None:
        """`on_frame(sender, payload)` for every frame of the channel. Borrowed: the payload is a
        memoryview that dies with the call, otherwise bytes. An exception out of it is logged
        and ends the connection the frame came on."""
        self._channels[channel] = (on_frame, borrowed)

    def send(
        self, to: NodeId, channel: int, payload: bytes | Sequence[bytes], *, control: bool = False
    ) -> bool:
        """False: not connected or the queue is full, and nothing was queued."""
        pair = self._mesh.links.get(to)
        return pair is not None and pair[0 if control else 1].send(channel, payload)

    def foreign_seeds(self) -> int:
        """How many other nodes the configured routes stand for, as far as is known."""
        return self._mesh.foreign_seeds()

    def peers(self) -> dict[NodeId, Peer]:
        return dict(self._mesh.peers)

    def connected(self, node: NodeId) -> bool:
        return node in self._mesh.links

    def heard_at(self, node: NodeId) -> float:
        """When anything last came from the node, of the monotonic clock; 0: never."""
        pair = self._mesh.links.get(node, ())
        links = [*pair, *(self._acceptor.links.get((node, kind)) for kind in LinkClass)]
        heard = max((link.heard_at for link in links if link is not None), default=0.0)
        self._heard[node] = max(heard, self._heard.get(node, 0.0))
        return self._heard[node]

    def session(self, node: NodeId) -> int:
        """0: not connected. Another number after every new connection: what was sent on an
        earlier one may not have arrived."""
        return self._mesh.sessions.get(node, 0)

    def pending_bytes(self, node: NodeId) -> int:
        """Bytes that wait in our bulk link to the node."""
        pair = self._mesh.links.get(node)
        return pair[1].pending_bytes() if pair else 0

    def update_hello(self) -> None:
        """Ask `hello()` again and tell every peer."""
        news = frame(NEWS, News(self._mesh.known(), self._ourselves.details()))
        for control, _ in self._mesh.links.values():
            control.send(LINK_CHANNEL, news)

    def forget(self, node: NodeId) -> None:
        """The node has left the cluster: drop it and dial it no more, unless it is a seed."""
        self._mesh.forget(node)

    def statistics(self) -> TransportStatistics:
        self._fold_counts()
        mesh = self._mesh
        standing = [*(k for pair in mesh.links.values() for k in pair)]
        standing.extend(self._acceptor.links.values())
        frames, sent, received, dropped = _total([self._ended, *(k.counts() for k in standing)])
        pending = sum(link.pending_bytes() for link in standing)
        return TransportStatistics(
            peers=len(mesh.peers),
            connected=len(mesh.links),
            sent_frames=frames,
            sent_bytes=sent,
            received_bytes=received,
            dropped_frames=dropped,
            pending_bytes=pending,
            refused=dict(mesh.refused),
        )

    def _deliver(self, link: Link, channel: int, view: memoryview) -> None:
        handler = self._channels.get(channel)
        if handler is None:
            return  # a channel of a newer program: not ours to judge
        on_frame, borrowed = handler
        try:
            on_frame(link.node, view if borrowed else bytes(view))
        except Exception as error:  # noqa: BLE001 - ends this connection, nothing else
            name = self._mesh.name(link.node)
            _log.exception("%s: a frame of %s on channel %d fails", self.name, name, channel)
            link.abort(error)

    def _fold_counts(self) -> None:
        self._ended = _total([self._ended, *self._mesh.lost_counts])
        self._mesh.lost_counts.clear()


def _total(counts: list[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
    a, b, c, d = (sum(column) for column in zip(*counts, strict=True))
    return a, b, c, d
