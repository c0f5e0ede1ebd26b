"""Who the other nodes are, where they live, and which of our dialers holds our links to each.

Owns: peers, seeds, addresses learned from hellos, the standing outgoing links.
May not touch: accepted connections (raft.acceptor), what frames mean.
Spec: a full mesh from one seed. Several addresses may lead to one node: the first dialer to reach
it holds the links, the others end; seeds are tried again while their node is not connected."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from raft.transport.dialer import Dialer, LinkPair
from raft.transport.handshake import (
    Address,
    HandshakeRefused,
    Hello,
    LocalPeer,
    RefusalCode,
    addresses,
)
from raft.transport.link import FrameError, Link
from raft.types import NodeId

_log = logging.getLogger("raft.transport")
_LINGER_SECONDS: Final = 0.5  # for queued frames to leave when the transport stops
_REASONS_MAX: Final = 256  # refusals remembered so that each is logged once
_REASONS_SECONDS: Final = 60.0  # when so many are remembered, they are forgotten no more often


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Bounds of the transport, each with what happens when it is reached."""

    frame_bytes_max: int = 96 << 20  # the connection ends
    control_queue_bytes_max: int = 8 << 20  # send() returns False
    bulk_queue_bytes_max: int = 64 << 20  # send() returns False
    peers_max: int = 256  # further addresses are not dialled
    strangers_max: int = 64  # further connections are closed until a handshake is done
    connect_seconds: float = 5.0  # a connection without a finished handshake is closed
    retry_first_seconds: float = 0.05
    retry_last_seconds: float = 1.0
    ping_seconds: float = 1.0
    quiet_intervals_max: int = 5  # pings without any answer before a link is given up


@dataclass(slots=True)
class Peer:
    """Another node, as far as we know it. `connected`: both our links to it stand."""

    node: NodeId
    name: str
    host: str
    port: int
    hello: dict[str, Any]
    connected: bool = False
    instance: int = 0


class PeerTable:
    """Lives inside a Transport, which gives it a TaskGroup while it runs."""

    def __init__(
        self,
        *,
        ourselves: LocalPeer,
        limits: TransportLimits,
        routes: Iterable[tuple[str, int]],
        tls: ssl.SSLContext | None,
        on_peer: Callable[[Peer, bool], None] | None,
    ) -> None:
        self.ourselves = ourselves
        self.limits = limits
        self.tls = tls
        self.tasks: asyncio.TaskGroup | None = None
        self.stopping = False  # links that end now are not dialled again
        self.peers: dict[NodeId, Peer] = {}
        self.links: dict[NodeId, LinkPair] = {}
        self.sessions: dict[NodeId, int] = {}  # of the standing links; every pair has its own
        self._last_session = 0
        self.lost_counts: list[tuple[int, int, int, int]] = []
        self.refused: Counter[str] = Counter()  # what peers did wrong, by kind
        self._open: set[Link] = set()  # every connection, either direction, any state
        self._all_lost = asyncio.Event()
        self._on_peer = on_peer
        # Which node a seed leads to, once it was reached; our own node for our own address.
        self._seeds: dict[tuple[str, int], NodeId | None] = {(h, p): None for h, p in routes}
        self._dialers: dict[tuple[str, int], Dialer] = {}
        self._owners: dict[NodeId, Dialer] = {}
        self._reasons: set[str] = set()
        self._reasons_since = time.monotonic()

    def dial_seeds(self) -> None:
        """Dial the seeds whose node is unknown or not connected."""
        for address, node in self._seeds.items():
            if node != self.ourselves.node and node not in self.links:
                self._dial(*address, node=None)

    def foreign_seeds(self) -> int:
        """How many other nodes the seeds stand for; one that was not reached yet counts."""
        reached = {node for node in self._seeds.values() if node is not None}
        unknown = sum(node is None for node in self._seeds.values())
        return len(reached - {self.ourselves.node}) + unknown

    def link_made(self, link: Link) -> None:
        self._open.add(link)
        self._all_lost.clear()

    def link_lost(self, link: Link, error: BaseException | None) -> None:
        if isinstance(error, FrameError):
            self.refused["frame"] += 1
        self.lost_counts.append(link.counts())
        self._open.discard(link)
        if not self._open:
            self._all_lost.set()

    async def drain(self) -> None:
        """Return when every connection has ended; those that linger are cut off."""
        await asyncio.sleep(0)  # for what was closed a moment ago
        if not self._open:
            return
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                await self._all_lost.wait()
        except TimeoutError:
            for link in self._open:
                link.abort()
            await self._all_lost.wait()

    def known(self) -> list[Address]:
        """What we tell others in a hello."""
        return [Address(p.node, p.host, p.port) for p in self.peers.values() if p.host]

    def forget(self, node: NodeId) -> None:
        dialer = self._owners.pop(node, None)
        if dialer is not None:
            dialer.stop()
        self.peers.pop(node, None)

    def name(self, node: NodeId) -> str:
        return self.peers[node].name if node in self.peers else str(node)

    def log_once(self, sentence: str) -> None:
        """One line per reason: a refused peer keeps on trying. Who finds ever new reasons fills
        the memory of them, and neither the log nor the silence for others is without end."""
        if sentence in self._reasons:
            return
        now = time.monotonic()
        if len(self._reasons) >= _REASONS_MAX:
            if now - self._reasons_since < _REASONS_SECONDS:
                return
            self._reasons.clear()
        if not self._reasons:
            self._reasons_since = now
        self._reasons.add(sentence)
        _log.warning("%s: %s", self.ourselves.name, sentence)
        if len(self._reasons) == _REASONS_MAX:
            _log.warning("%s: further reasons are not logged for now", self.ourselves.name)

    def tls_failed(self, whom: str, error: OSError) -> None:
        """A connection that did not come to be."""
        self.refused["tls"] += 1
        self.log_once(f"no TLS with {whom}: {_reason(error)}")

    # what hellos teach

    def check_name(self, theirs: Hello, *, alive: bool) -> None:
        """A second server of a live peer's name is refused; a restarted one, whose former links
        are gone or silent, is not. Raises Refused."""
        peer = self.peers.get(NodeId(theirs.node))
        if peer is not None and alive and peer.instance not in (0, theirs.instance):
            reason = f'another server has the name "{theirs.name}"'
            raise HandshakeRefused(RefusalCode.NAME, reason, by_us=True)

    def learn_peer(self, theirs: Hello, host: str) -> Peer:
        node = NodeId(theirs.node)
        peer = self.peers.get(node)
        if peer is None:
            peer = self.peers[node] = Peer(node, theirs.name, host, theirs.port, theirs.hello)
        peer.host, peer.port, peer.instance = host, theirs.port, theirs.instance
        self.learn_details(node, theirs.hello)
        return peer

    def learn_details(self, node: NodeId, details: dict[str, Any]) -> None:
        peer = self.peers.get(node)
        if peer is not None and peer.hello != details:
            peer.hello = details
            if peer.connected:
                self._tell(peer, connected=True)

    def learn_addresses(self, known: list[Address]) -> None:
        for node, host, port in addresses(known):
            self.learn_address(node, host, port, fresh=False)

    def learn_address(self, node: NodeId, host: str, port: int, *, fresh: bool) -> None:
        """Dial a node we have no links to. Fresh: the node itself says that it is there."""
        if node == self.ourselves.node or node in self.links:
            return
        owner = self._owners.get(node)
        if owner is None:
            self._dial(host, port, node=node)
        elif fresh and not owner.reached:
            if owner.address == (host, port):
                owner.wake()
                return
            if owner.address not in self._seeds:  # it has moved; a seed may yet lead somewhere
                owner.stop()
            self._dial(host, port, node=node)

    # what our dialers report

    def found_ourselves(self, dialer: Dialer) -> None:
        if dialer.address in self._seeds:
            self._seeds[dialer.address] = self.ourselves.node

    def claim(self, dialer: Dialer, theirs: Hello) -> bool:
        """Whether this dialer is the one to hold our links to the node it has reached."""
        node = NodeId(theirs.node)
        if dialer.address in self._seeds:
            self._seeds[dialer.address] = node
        owner = self._owners.get(node)
        if owner is not None and owner is not dialer:
            if owner.reached:
                peer = self.peers.get(node)
                if peer is not None and peer.instance != theirs.instance:
                    host, port = dialer.address
                    self.log_once(f'the server at {host}:{port} has the name "{peer.name}" too')
                return False
            owner.stop()
        self._owners[node] = dialer
        self.learn_addresses(theirs.peers)
        return True

    def peer_up(self, peer: Peer, links: LinkPair) -> None:
        self.links[peer.node] = links
        self._last_session += 1
        self.sessions[peer.node] = self._last_session
        peer.connected = True
        _log.info(
            "%s: connected to %s at %s:%d", self.ourselves.name, peer.name, peer.host, peer.port
        )
        self._tell(peer, connected=True)

    def peer_down(self, peer: Peer, error: BaseException | None) -> None:
        if self.links.pop(peer.node, None) is None:
            return
        del self.sessions[peer.node]
        peer.connected = False
        _log.info(
            "%s: connection to %s lost: %s", self.ourselves.name, peer.name, error or "closed"
        )
        self._tell(peer, connected=False)

    def dialer_ended(self, dialer: Dialer) -> None:
        if self._dialers.get(dialer.address) is dialer:
            del self._dialers[dialer.address]
        for node in [n for n, owner in self._owners.items() if owner is dialer]:
            del self._owners[node]

    def _dial(self, host: str, port: int, *, node: NodeId | None) -> None:
        address = (host, port)
        if self.tasks is None or self.stopping:
            return
        if address in self._dialers:
            self._dialers[address].wake()  # it may be sleeping between two attempts
            return
        if len(self._dialers) >= self.limits.peers_max:
            self.log_once(f"{host}:{port} is not dialled: too many addresses are known")
            return
        dialer = Dialer(self, address)
        self._dialers[address] = dialer
        if node is not None:
            self._owners[node] = dialer
        dialer.task = self.tasks.create_task(dialer.run(), name=f"dial {host}:{port}")

    def _tell(self, peer: Peer, *, connected: bool) -> None:
        if self._on_peer is None:
            return
        try:
            self._on_peer(peer, connected)
        except Exception:  # noqa: BLE001 - logged; the links do not depend on it
            _log.exception("%s: on_peer failed for %s", self.ourselves.name, peer.name)


def _reason(error: OSError) -> str:
    """What went wrong, without the place in the library's source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        words = error.reason.lower().replace("_", " ")
        return f"it refuses us: {words}" if " alert " in f" {words} " else words
    return str(error) or "the connection is lost"
