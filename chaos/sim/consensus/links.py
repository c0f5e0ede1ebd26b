"""The links of a simulated node: which other nodes it is connected to, and its beats to them.

Owns: the links that are broken on this node's side.
May not touch: Raft messages (node.py sends them), cuts (network.py).
Spec: the counterpart of raft/transport/transport.py as raft/host/quiescence.py uses it. The links
to a process that crashed break at once. A cut breaks no link: nothing arrives any more. A link may
also break on one side only, and the node on the other side notices nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from chaos.sim.consensus.environment import SimEnvironment
from raft.types import NodeId


class LinkedNode(Protocol):
    """Another node, as far as a link uses it."""

    @property
    def running(self) -> bool: ...

    def hear(self, node: NodeId) -> None:
        """A beat of this node arrives."""


class SimLinks:
    def __init__(
        self, node: NodeId, environment: SimEnvironment, peers: Mapping[NodeId, LinkedNode]
    ) -> None:
        """`peers` are all nodes of the cluster, this one included."""
        self._node = node
        self._environment = environment
        self._peers = peers
        self._broken: set[NodeId] = set()

    def connected_peers(self) -> set[NodeId]:
        return {node for node in self._peers if node != self._node and self.connected(node)}

    def connected(self, node: NodeId) -> bool:
        return node not in self._broken and self._peers[node].running

    def send(self, to: NodeId, channel: int, payload: bytes, *, control: bool = False) -> bool:
        """Beats only: they have no content."""
        return self._environment.network.send(self._node, to, self._peers[to].hear, self._node)

    def break_link(self, to: NodeId) -> None:
        self._broken.add(to)

    def mend(self) -> None:
        self._broken.clear()
