"""The feature level: raised when every member has it, kept in the table, and never misread."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from broker.cluster.meta.assignments import AssignmentTable, encode_command
from broker.cluster.meta.feature_level import (
    NEWEST_LEVEL,
    LevelRaised,
    RaiseLevel,
    TooNew,
    next_level,
)
from broker.cluster.meta.joining import JoinRequest, refusal
from broker.cluster.meta.node_table import NodeTable, SetStanding, Standing
from raft import Index, NodeId

A, B, C = NodeId(11), NodeId(22), NodeId(33)
# The table of three nodes and no stream, as version 0.1 writes it: applied index, streams, nodes.
VERSION_0_1 = b"\x93\x07\x90\x93" + b"".join(
    b"\x85\xa4node" + bytes((node,)) + b"\xa4name\xa1" + name + b"\xa8standing\xa6member"
    b"\xa8since_ns\x00\xabreplaced_by\x00"
    for node, name in ((A, b"a"), (B, b"b"), (C, b"c"))
)


@dataclass
class Told:
    levels: dict[NodeId, int]
    away: set[NodeId] = field(default_factory=set)

    def connected(self, node: NodeId) -> bool:
        return node not in self.away

    def feature_level(self, node: NodeId) -> int:
        return self.levels.get(node, 0)


def three() -> NodeTable:
    nodes = NodeTable()
    nodes.found({A: "a", B: "b", C: "c"})
    return nodes


def test_the_level_is_raised_when_every_member_has_it() -> None:
    nodes = three()
    assert next_level(0, nodes, Told({A: 1, B: 1, C: 1})) == 1
    assert next_level(0, nodes, Told({A: 3, B: 2, C: 4})) == 2
    assert next_level(1, nodes, Told({A: 1, B: 1, C: 1})) is None
    assert next_level(0, nodes, Told({A: 1, B: 1})) is None, "C has not said that it has one"
    assert next_level(2, nodes, Told({A: 1, B: 1, C: 1})) is None, "it never goes down"


def test_a_member_that_is_away_holds_it_back() -> None:
    """It may return in an earlier version."""
    nodes = three()
    told = Told({A: 1, B: 1, C: 1}, away={C})
    assert next_level(0, nodes, told) is None
    nodes.set_standing(SetStanding(C, Standing.REMOVED, 9))
    assert next_level(0, nodes, told) == 1, "a removed one does not"


def test_a_cluster_without_nodes_has_nothing_to_raise() -> None:
    assert next_level(0, NodeTable(), Told({})) is None


def raised(table: AssignmentTable, level: int) -> object:
    return table.apply(Index(table.applied + 1), encode_command(RaiseLevel(level)))[1]


def test_the_level_survives_snapshots_and_only_goes_up() -> None:
    table = AssignmentTable()
    assert raised(table, 1) == LevelRaised(1)
    assert raised(table, 0) == LevelRaised(1)
    copy = AssignmentTable()
    copy.load_dump(table.dump())
    assert copy.level == 1
    assert copy.dump() == table.dump()


def test_at_level_0_the_table_is_what_version_0_1_reads_and_writes() -> None:
    table = AssignmentTable()
    table.load_dump(VERSION_0_1)
    assert [record.name for record in table.nodes.present()] == ["a", "b", "c"]
    assert table.level == 0
    assert table.dump() == VERSION_0_1


def test_a_table_of_a_newer_version_is_refused() -> None:
    table = AssignmentTable()
    with pytest.raises(
        TooNew, match=f"feature level 9, this version of JetRaft has {NEWEST_LEVEL}"
    ):
        raised(table, 9)
    assert table.level == 0


def test_a_node_of_an_earlier_version_does_not_join() -> None:
    table = AssignmentTable()

    def refused(level: int) -> str | None:
        request = JoinRequest("d", 44, level)
        return refusal(request, table.nodes, table.level, connected=lambda _: True)

    assert refused(0) is None
    raised(table, 1)
    assert refused(1) is None
    assert refused(0) == (
        '"d" has feature level 0, the cluster has 1: start a newer version of JetRaft there'
    )
