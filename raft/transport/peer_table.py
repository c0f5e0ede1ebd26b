"""The other nodes that we know, and our links to each.

Owns: peers, the contents of their hellos, the outgoing links that are up.
May not touch: accepted connections (raft/transport/acceptor.py), which addresses are dialed
(raft/transport/dial_plan.py), what frames mean.
Spec: two outgoing links per peer, control and bulk. Every new pair of links gets a new number:
frames of an earlier pair may be lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raft.transport.handshake import (
    BASE_VERSION,
    Address,
    HandshakeRefused,
    Hello,
    LocalPeer,
    RefusalCode,
)
from raft.transport.link import Link
from raft.types import NodeId

LinkPair = tuple[Link, Link]  # control, bulk
_log = logging.getLogger("raft.transport")


@dataclass(slots=True)
class Peer:
    """Another node. `connected`: both our links to it are up."""

    node: NodeId
    name: str
    host: str
    port: int
    hello: dict[str, Any]
    connected: bool = False
    instance: int = 0
    version: int = BASE_VERSION  # of the peer protocol, on links with this node


class PeerTable:
    def __init__(
        self,
        ourselves: LocalPeer,
        *,
        on_peer: Callable[[Peer, bool], None] | None,
        seed_sources: frozenset[str] = frozenset(),
    ) -> None:
        """`seed_sources`: addresses of configured routes, which are known before any contact."""
        self.ourselves = ourselves
        self.peers: dict[NodeId, Peer] = {}
        self.links: dict[NodeId, LinkPair] = {}
        self.link_pair_numbers: dict[NodeId, int] = {}  # of the links that are up; each is unique
        self._last_link_pair = 0
        self._seed_sources = seed_sources
        self._sources: dict[NodeId, str] = {}  # where each node connects from
        self._on_peer = on_peer

    def expect(self, seed_sources: frozenset[str]) -> None:
        """The configured routes have changed."""
        self._seed_sources = seed_sources

    def known(self) -> list[Address]:
        """The addresses that we send to others in a hello."""
        return [Address(p.node, p.host, p.port) for p in self.peers.values() if p.host]

    def name(self, node: NodeId) -> str:
        return self.peers[node].name if node in self.peers else str(node)

    def forget(self, node: NodeId) -> None:
        self.peers.pop(node, None)
        self._sources.pop(node, None)

    def learn_source(self, node: NodeId, source: str) -> None:
        """The node has finished a handshake over a connection with this address."""
        self._sources[node] = source

    def is_known_source(self, source: str) -> bool:
        """Whether a node of the cluster is known to connect from there."""
        return source in self._seed_sources or source in self._sources.values()

    def check_name(self, theirs: Hello, *, alive: Callable[[NodeId], bool]) -> None:
        """Refuse a second server with the name of a live peer, but not a restarted one, whose old
        links are closed or idle. Raises HandshakeRefused. A server that was restarted with a new
        data directory has a different id."""
        for peer in self.peers.values():
            same = peer.name == theirs.name or peer.node == theirs.node
            if same and peer.instance not in (0, theirs.instance) and alive(peer.node):
                reason = f'another server has the name "{theirs.name}"'
                raise HandshakeRefused(RefusalCode.NAME, reason, by_us=True)

    def learn_peer(self, theirs: Hello, host: str) -> Peer:
        node = NodeId(theirs.node)
        peer = self.peers.get(node)
        if peer is None:
            peer = self.peers[node] = Peer(node, theirs.name, host, theirs.port, theirs.hello)
        peer.host, peer.port, peer.instance = host, theirs.port, theirs.instance
        peer.version = theirs.version
        self._forget_predecessors(peer)
        self.learn_details(node, theirs.hello)
        return peer

    def _forget_predecessors(self, peer: Peer) -> None:
        """Forget disconnected nodes with this peer's name: a server that was restarted with a new
        data directory is a new node, and nobody needs to dial the old one."""
        for other in list(self.peers.values()):
            if other.name == peer.name and other is not peer and not other.connected:
                del self.peers[other.node]

    def learn_details(self, node: NodeId, details: dict[str, Any]) -> None:
        peer = self.peers.get(node)
        if peer is not None and peer.hello != details:
            peer.hello = details
            if peer.connected:
                self._notify(peer, connected=True)

    def peer_up(self, peer: Peer, links: LinkPair) -> None:
        self.links[peer.node] = links
        self._last_link_pair += 1
        self.link_pair_numbers[peer.node] = self._last_link_pair
        peer.connected = True
        _log.info(
            "%s: connected to %s at %s:%d", self.ourselves.name, peer.name, peer.host, peer.port
        )
        self._notify(peer, connected=True)

    def peer_down(self, peer: Peer, error: BaseException | None) -> None:
        if self.links.pop(peer.node, None) is None:
            return
        del self.link_pair_numbers[peer.node]
        peer.connected = False
        _log.info(
            "%s: connection to %s lost: %s", self.ourselves.name, peer.name, error or "closed"
        )
        self._notify(peer, connected=False)
        successor = next((p for p in self.links if self.peers[p].name == peer.name), None)
        if successor is not None:
            self._forget_predecessors(self.peers[successor])

    def _notify(self, peer: Peer, *, connected: bool) -> None:
        if self._on_peer is None:
            return
        try:
            self._on_peer(peer, connected)
        except Exception:  # noqa: BLE001 - logged; the links do not depend on it
            _log.exception("%s: on_peer failed for %s", self.ourselves.name, peer.name)
