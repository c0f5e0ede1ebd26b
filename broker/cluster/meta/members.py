"""The members of the cluster: which nodes belong to it now, and what they are called.

Owns: the list of members and their names as this node knows them, empty until it belongs to a
cluster.
May not touch: how a node becomes a member (founding.py, joining.py), links, Raft."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.cluster.meta.node_table import NodeTable, Standing
from raft import NodeId


class ClusterMembers:
    """`founded` is set while this node belongs to a cluster and has a stream table, which may be
    outdated. `learned` is set once the table has been current at some time since it was read from
    disk."""

    def __init__(self, node: NodeId, nodes: NodeTable, peer_name: Callable[[NodeId], str]) -> None:
        self.node = node  # this one
        self.founded = asyncio.Event()
        self.learned = asyncio.Event()
        self._table = nodes
        self._peer_name = peer_name
        self.nodes: list[NodeId] = []  # members, also those that are draining or leaving
        self.placeable: list[NodeId] = []  # those that may get replicas
        self.on_change: list[Callable[[], None]] = []
        self.removed = False  # this incarnation was removed, and will never be a member again

    def refresh(self) -> None:
        """The table of nodes has changed."""
        self.nodes = sorted(NodeId(record.node) for record in self._table.present())
        self.placeable = sorted(self._table.placeable())
        for callback in self.on_change:
            callback()

    @property
    def clustered(self) -> bool:
        """Whether there are other members than this node."""
        return len(self.nodes) > 1

    @property
    def others(self) -> list[NodeId]:
        return [node for node in self.nodes if node != self.node]

    def name(self, node: NodeId) -> str:
        """The server name of a node that is or was a member, or of a peer that is connected; ""
        when unknown."""
        record = self._table.get(node)
        return record.name if record is not None else self._peer_name(node)

    def named(self, name: str) -> NodeId | None:
        """The member with this server name."""
        record = self._table.named(name)
        return NodeId(record.node) if record is not None else None

    def standing(self, node: NodeId) -> Standing | None:
        record = self._table.get(node)
        return record.standing if record is not None else None
