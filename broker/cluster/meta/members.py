"""The members of the cluster: which nodes founded it and what they are called.

Owns: the list of members and their names, empty until the cluster is founded.
May not touch: how the cluster is founded (founding.py), links, Raft."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from raft import NodeId, node_id


class ClusterMembers:
    """`founded` is set once the members are known; they do not change afterwards."""

    def __init__(self, node: NodeId, peer_name: Callable[[NodeId], str]) -> None:
        self.node = node  # this one
        self.nodes: list[NodeId] = []
        self.founded = asyncio.Event()
        self._peer_name = peer_name
        self._names: dict[NodeId, str] = {}

    def set(self, names: Sequence[str]) -> None:
        self._names = {node_id(name): name for name in names}
        self.nodes = sorted(self._names)

    @property
    def clustered(self) -> bool:
        """Whether there are other members than this node."""
        return len(self.nodes) > 1

    @property
    def others(self) -> list[NodeId]:
        return [node for node in self.nodes if node != self.node]

    def name(self, node: NodeId) -> str:
        """The server name of a member, or of a peer that is connected; "" when unknown."""
        return self._names.get(node, "") or self._peer_name(node)
