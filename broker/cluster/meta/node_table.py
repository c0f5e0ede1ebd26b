"""The nodes of the cluster: the part of the meta group's state that says who belongs to it.

Owns: one record per incarnation of a node, and the commands that add, drain and remove them.
May not touch: Raft, clocks, links. Which of them vote in the meta group is decided elsewhere
(meta_voters.py).
Spec: docs/decisions/0015-nodes-come-and-go.md.

An incarnation is a data directory: a name with another directory is another node. States only move
forward: member, draining (and back), removed. A removed incarnation never comes back, because its
replicas and its vote may be given to others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

import msgspec

from raft import NodeId

REMOVED_MAX: Final = 1000  # records of removed incarnations; the oldest are forgotten


class Standing(Enum):
    """How a node belongs to the cluster."""

    MEMBER = "member"
    DRAINING = "draining"  # a member that gets no replicas and gives up those it has
    LEAVING = "leaving"  # as draining; then it is removed
    REMOVED = "removed"


class NodeRecord(msgspec.Struct, frozen=True):
    node: int
    name: str
    standing: Standing = Standing.MEMBER
    since_ns: int = 0
    replaced_by: int = 0  # the incarnation that took over its name and its replicas


class AddNode(msgspec.Struct, tag="add node", frozen=True):
    """Add a new incarnation. It replaces one of the same name that is not removed."""

    node: int
    name: str
    now_ns: int


class SetStanding(msgspec.Struct, tag="set standing", frozen=True):
    """Drain a node, undo that, begin to remove it, or finish the removal."""

    node: int
    standing: Standing
    now_ns: int


class NodeTable:
    """Only the meta group's state machine changes it."""

    def __init__(self) -> None:
        self._nodes: dict[int, NodeRecord] = {}

    def __iter__(self) -> Iterator[NodeRecord]:
        return iter(list(self._nodes.values()))

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def get(self, node: int) -> NodeRecord | None:
        return self._nodes.get(node)

    def named(self, name: str) -> NodeRecord | None:
        """The incarnation that has the name now."""
        return next((n for n in self.present() if n.name == name), None)

    def present(self) -> list[NodeRecord]:
        """All that are not removed."""
        return [n for n in self._nodes.values() if n.standing is not Standing.REMOVED]

    def placeable(self) -> list[NodeId]:
        """The nodes that may get replicas."""
        return [NodeId(n.node) for n in self._nodes.values() if n.standing is Standing.MEMBER]

    def is_removed(self, node: int) -> bool:
        record = self._nodes.get(node)
        return record is not None and record.standing is Standing.REMOVED

    def former(self, node: int) -> list[int]:
        """The incarnations that this one has replaced, directly or through others."""
        record = self._nodes.get(node)
        if record is None:
            return []
        return [n.node for n in self._nodes.values() if n.name == record.name and n.replaced_by]

    # -- changes, by the state machine ----------------------------------------------------------

    def found(self, names: dict[NodeId, str]) -> None:
        """Add the founders, unless a stored table was loaded. The result is the same on every node,
        because the founding record is."""
        if not self._nodes:
            self._nodes = {node: NodeRecord(node, names[node]) for node in sorted(names)}

    def load(self, records: Iterable[NodeRecord]) -> None:
        self._nodes = {record.node: record for record in records}

    def dump(self) -> list[NodeRecord]:
        return [self._nodes[node] for node in sorted(self._nodes)]

    def add(self, command: AddNode) -> tuple[NodeRecord, NodeRecord | None]:
        """The record, and the incarnation that it replaces, if there is one. Adding a node again
        changes nothing; a removed one stays removed."""
        known = self._nodes.get(command.node)
        if known is not None:
            return known, None
        former = self.named(command.name)
        if former is not None:
            former = msgspec.structs.replace(
                former,
                standing=Standing.REMOVED,
                since_ns=command.now_ns,
                replaced_by=command.node,
            )
            self._nodes[former.node] = former
        added = NodeRecord(command.node, command.name, since_ns=command.now_ns)
        self._nodes[command.node] = added
        self._forget_oldest()
        return added, former

    def set_standing(self, command: SetStanding) -> NodeRecord | None:
        """None: no such node, or it is removed already."""
        known = self._nodes.get(command.node)
        if known is None or known.standing is Standing.REMOVED:
            return None
        changed = msgspec.structs.replace(known, standing=command.standing, since_ns=command.now_ns)
        self._nodes[command.node] = changed
        self._forget_oldest()
        return changed

    def _forget_oldest(self) -> None:
        removed = [n for n in self._nodes.values() if n.standing is Standing.REMOVED]
        for record in sorted(removed, key=lambda n: (n.since_ns, n.node))[:-REMOVED_MAX]:
            del self._nodes[record.node]
