"""The feature level of the cluster: the newest level that every member supports.

Owns: the levels, the rule when the cluster's level is raised, and the leader's task that raises it.
May not touch: the features; each checks the level in the table of assignments before it writes
something that a node of an earlier version cannot read.
Spec: docs/decisions/0022-upgrades.md. The level is part of the meta group's state and only goes up.
A node announces its own level in its hello, not in the log: an earlier version could not read that
entry."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from broker.cluster.meta.node_table import NodeTable
from broker.cluster.proposals import LostLeadership
from raft import NodeId, RaftError

logger = logging.getLogger("jetraft.cluster")

# 0: version 0.1. 1: the table of assignments contains its level and is stored in rows; a removal
# identifies a stream, not just a name; blocks may be compressed on disk. 2: entries of writers;
# publish entries name the rules by which replicas check their messages; a pause that is over is
# shown. 3: large blocks are in files next to the database.
NEWEST_LEVEL: Final = 3
COMPRESSED_BLOCKS: Final = 1
WRITERS: Final = 2
LEVEL_OF_RULES: Final = 2
BLOCK_FILES: Final = 3
CHECK_EVERY_S: Final = 0.5


class TooNew(RaftError):
    """The table was written by a version that has features which this one does not know."""


class RaiseLevel(msgspec.Struct, tag="raise level", frozen=True):
    """Every member has this level: entries after this one may require it."""

    level: int


class LevelRaised(msgspec.Struct, frozen=True):
    level: int


def known_level(level: int) -> int:
    """Returns `level`. Raises TooNew if this version does not know it."""
    if level > NEWEST_LEVEL:
        raise TooNew(
            f"the cluster has feature level {level}, this version of JetRaft has {NEWEST_LEVEL}: "
            "start a version that has it"
        )
    return level


class AnnouncedLevels(Protocol):
    """The mesh: the levels announced by connected nodes and by this one."""

    def connected(self, node: NodeId) -> bool: ...

    def feature_level(self, node: NodeId) -> int: ...


def next_level(present: int, nodes: NodeTable, announced: AnnouncedLevels) -> int | None:
    """The level to propose; None: no change. Every member must be connected: one that is away may
    return with an earlier version."""
    members = [NodeId(record.node) for record in nodes.present()]
    if not members or not all(map(announced.connected, members)):
        return None
    common = min(map(announced.feature_level, members))
    return common if common > present else None


class LeveledTable(Protocol):
    """The replicated table, as far as levels are concerned."""

    level: int
    nodes: NodeTable


class LeadingGroup(Protocol):
    """The meta group."""

    @property
    def knows_all(self) -> bool: ...

    async def propose(self, command: RaiseLevel) -> object: ...


@dataclass(slots=True)
class LevelRaiser:
    """`run` is a task of every node; it acts only on the leader of the meta group."""

    group: LeadingGroup
    table: LeveledTable
    announced: AnnouncedLevels

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            if self.group.knows_all:
                await self._step()

    async def _step(self) -> None:
        level = next_level(self.table.level, self.table.nodes, self.announced)
        if level is None:
            return
        try:
            await self.group.propose(RaiseLevel(level))
        except (RaftError, LostLeadership) as refused:
            logger.debug("feature level: %s", refused)  # the next leader decides again
        else:
            alone = len(self.table.nodes.present()) == 1
            log = logger.debug if alone else logger.info  # not news on a single server
            log("every node has feature level %d: the cluster uses it", level)
