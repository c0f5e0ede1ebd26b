"""Which addresses are dialed, and which dialer holds our links to a node.

Owns: the seeds (configured routes), the running dialers, which of them holds a node's links.
May not touch: accepted connections (raft/transport/acceptor.py), what frames mean.
Spec: a full mesh from one seed. Several addresses may lead to one node: the first dialer that
reaches it holds the links, the others end. Seeds are tried again while their node is not
connected."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable

from raft.transport.dialer import Dialer
from raft.transport.handshake import (
    Address,
    HandshakeRefused,
    Hello,
    RefusalCode,
    addresses,
)
from raft.transport.limits import TransportLimits
from raft.transport.open_links import OpenLinks
from raft.transport.peer_table import PeerTable
from raft.transport.refusals import Refusals
from raft.types import NodeId


class DialPlan:
    """Dials between `open`, which gives it a TaskGroup, and `close`."""

    def __init__(
        self,
        *,
        peers: PeerTable,
        open_links: OpenLinks,
        refusals: Refusals,
        limits: TransportLimits,
        routes: Iterable[tuple[str, int]],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._peers = peers
        self._open_links = open_links
        self._refusals = refusals
        self._limits = limits
        self._tls = tls
        self._tasks: asyncio.TaskGroup | None = None
        # The node at the address of a seed, once it was reached; our own node for our own address.
        self._seeds: dict[tuple[str, int], NodeId | None] = {(h, p): None for h, p in routes}
        self._dialers: dict[tuple[str, int], Dialer] = {}
        self._holders: dict[NodeId, Dialer] = {}

    def open(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self.dial_seeds()

    def close(self) -> None:
        """Stop dialing: links that end from now on are not dialed again."""
        self._tasks = None

    def dial_seeds(self) -> None:
        """Dial the seeds whose node is unknown or not connected."""
        for address, node in self._seeds.items():
            if node != self._peers.ourselves.node and node not in self._peers.links:
                self._dial(*address, node=None)

    def reseed(self, routes: Iterable[tuple[str, int]]) -> None:
        """Replace the seeds. Links to nodes that are no longer seeds stay open."""
        self._seeds = {address: self._seeds.get(address) for address in routes}
        if self._tasks is not None:
            self.dial_seeds()

    def seed_nodes(self) -> set[NodeId] | None:
        """The other nodes among the seeds. None: a seed was never reached."""
        reached = {node for node in self._seeds.values() if node is not None}
        if None in self._seeds.values():
            return None
        return reached - {self._peers.ourselves.node}

    def unreachable(self) -> list[str]:
        """The seeds that we have no links to, each with the reason."""
        found = []
        for (host, port), node in self._seeds.items():
            if node == self._peers.ourselves.node or node in self._peers.links:
                continue
            dialer = self._dialers.get((host, port))
            reason = dialer.failure if dialer is not None else ""
            found.append(f"{host}:{port} {reason or 'has not answered yet'}")
        return found

    def forget(self, node: NodeId) -> None:
        """Stop dialing the node, unless it is a seed."""
        dialer = self._holders.pop(node, None)
        if dialer is not None:
            dialer.stop()

    def learn_addresses(self, known: list[Address]) -> None:
        for node, host, port in addresses(known):
            self.learn_address(node, host, port, fresh=False)

    def learn_address(self, node: NodeId, host: str, port: int, *, fresh: bool) -> None:
        """Dial a node that we have no links to. `fresh`: the node itself sent its address."""
        if node == self._peers.ourselves.node or node in self._peers.links:
            return
        holder = self._holders.get(node)
        if holder is None:
            self._dial(host, port, node=node)
        elif fresh and not holder.reached:
            if holder.address == (host, port):
                holder.wake()
                return
            if holder.address not in self._seeds:  # the node has moved; a seed is kept
                holder.stop()
            self._dial(host, port, node=node)

    # called by dialers

    def found_ourselves(self, dialer: Dialer) -> None:
        if dialer.address in self._seeds:
            self._seeds[dialer.address] = self._peers.ourselves.node

    def claim(self, dialer: Dialer, theirs: Hello) -> bool:
        """Whether this dialer may hold our links to the node that it has reached. Raises
        HandshakeRefused while we are linked to another node of that name."""
        node = NodeId(theirs.node)
        namesake = next((p for p in self._peers.links if self._peers.name(p) == theirs.name), node)
        if namesake != node:
            reason = f'another server has the name "{theirs.name}"'
            raise HandshakeRefused(RefusalCode.NAME, reason, by_us=True)
        if dialer.address in self._seeds:
            self._seeds[dialer.address] = node
        holder = self._holders.get(node)
        if holder is not None and holder is not dialer:
            if holder.reached:
                peer = self._peers.peers.get(node)
                if peer is not None and peer.instance != theirs.instance:
                    host, port = dialer.address
                    self._refusals.log_once(
                        f'the server at {host}:{port} also has the name "{peer.name}"'
                    )
                return False
            holder.stop()
        self._holders[node] = dialer
        self.learn_addresses(theirs.peers)
        return True

    def ended(self, dialer: Dialer) -> None:
        if self._dialers.get(dialer.address) is dialer:
            del self._dialers[dialer.address]
        for node in [n for n, holder in self._holders.items() if holder is dialer]:
            del self._holders[node]

    def _dial(self, host: str, port: int, *, node: NodeId | None) -> None:
        address = (host, port)
        if self._tasks is None:
            return
        if address in self._dialers:
            self._dialers[address].wake()  # it may be waiting for its next attempt
            return
        if len(self._dialers) >= self._limits.peers_max:
            self._refusals.log_once(f"{host}:{port} is not dialed: too many addresses are known")
            return
        dialer = Dialer(
            address,
            plan=self,
            peers=self._peers,
            open_links=self._open_links,
            refusals=self._refusals,
            limits=self._limits,
            tls=self._tls,
        )
        self._dialers[address] = dialer
        if node is not None:
            self._holders[node] = dialer
        dialer.task = self._tasks.create_task(dialer.run(), name=f"dial {host}:{port}")
