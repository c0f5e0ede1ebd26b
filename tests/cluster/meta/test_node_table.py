"""The table of nodes: incarnations replace each other, and what is removed stays removed."""

from __future__ import annotations

import random

import pytest

from broker.cluster.meta.assignments import (
    Assignment,
    AssignmentTable,
    AssignStream,
    MetaCommand,
    MetaResult,
    MoveReplicas,
    NodeChange,
    encode_command,
)
from broker.cluster.meta.joining import JoinRequest, refusal
from broker.cluster.meta.node_table import (
    REMOVED_MAX,
    AddNode,
    NodeTable,
    SetStanding,
    Standing,
)
from broker.jetstream.config import StreamConfig
from broker.jetstream.errors import JetStreamError
from raft import Index, NodeId

A, B, C, D = (NodeId(n) for n in (11, 22, 33, 44))
NEW_B, NEWER_B = NodeId(222), NodeId(2222)


class Log:
    """The state machine of the meta group, with three founders."""

    def __init__(self) -> None:
        self.meta = AssignmentTable()
        self.meta.nodes.found({A: "a", B: "b", C: "c"})

    def do(self, command: MetaCommand) -> MetaResult:
        return self.meta.apply(Index(self.meta.applied + 1), encode_command(command))[1]

    def stream(self, name: str, *peers: int) -> Assignment:
        config = StreamConfig(name=name, subjects=(f"{name}.>",), num_replicas=len(peers))
        made = self.do(AssignStream("$G", config, 1, list(peers)))
        assert isinstance(made, Assignment)
        return made

    def peers(self, name: str) -> list[int]:
        found = self.meta.get("$G", name)
        assert found is not None
        return found.peers

    def present(self) -> dict[int, str]:
        return {record.node: record.name for record in self.meta.nodes.present()}


def test_a_new_incarnation_takes_the_places_of_the_former_one() -> None:
    log = Log()
    log.stream("S", A, B, C)
    log.stream("T", C, A)
    change = log.do(AddNode(NEW_B, "b", 9))
    assert isinstance(change, NodeChange)
    assert [moved.name for moved in change.moved] == ["S"]
    assert log.peers("S") == [A, NEW_B, C]
    assert log.peers("T") == [C, A]
    assert log.present() == {A: "a", C: "c", NEW_B: "b"}
    former = log.meta.nodes.get(B)
    assert former is not None
    assert (former.standing, former.replaced_by) == (Standing.REMOVED, NEW_B)
    stream = log.meta.get("$G", "S")
    assert stream is not None
    assert stream.members == [A, B, C]  # the stream's leader exchanges them


def test_the_former_incarnations_of_a_node_are_known() -> None:
    log = Log()
    assert log.meta.nodes.former(B) == []
    log.do(AddNode(NEW_B, "b", 9))
    log.do(AddNode(NEWER_B, "b", 10))
    assert sorted(log.meta.nodes.former(NEWER_B)) == [B, NEW_B]
    assert log.meta.nodes.former(A) == log.meta.nodes.former(4711) == []


def test_a_node_that_is_added_twice_is_added_once() -> None:
    log = Log()
    log.stream("S", A, B, C)
    log.do(AddNode(NEW_B, "b", 9))
    before = log.meta.nodes.dump()
    again = log.do(AddNode(NEW_B, "b", 10))
    assert isinstance(again, NodeChange)
    assert not again.moved
    assert log.meta.nodes.dump() == before


def test_a_removed_incarnation_never_returns() -> None:
    log = Log()
    log.do(AddNode(NEW_B, "b", 9))
    log.do(AddNode(B, "b", 10))
    assert log.present() == {A: "a", C: "c", NEW_B: "b"}
    assert isinstance(log.do(SetStanding(B, Standing.MEMBER, 11)), JetStreamError)
    assert log.meta.nodes.is_removed(B)


def test_a_move_is_void_when_the_peers_have_changed() -> None:
    log = Log()
    stream = log.stream("S", A, B, C)
    log.do(AddNode(NEW_B, "b", 9))
    late = MoveReplicas("$G", "S", stream.group, [A, B, C], [A, D, C], 12)
    assert isinstance(log.do(late), JetStreamError)
    assert log.peers("S") == [A, NEW_B, C]


def test_draining_nodes_are_members_without_new_replicas() -> None:
    log = Log()
    log.do(SetStanding(B, Standing.DRAINING, 9))
    assert sorted(log.present()) == [A, B, C]
    assert sorted(log.meta.nodes.placeable()) == [A, C]
    log.do(SetStanding(B, Standing.MEMBER, 10))
    assert sorted(log.meta.nodes.placeable()) == [A, B, C]


def test_the_table_survives_a_snapshot_and_an_old_record_has_the_founders() -> None:
    log = Log()
    log.do(AddNode(NEW_B, "b", 9))
    other = AssignmentTable()
    other.load_dump(log.meta.dump())
    other.nodes.found({A: "a", B: "b", C: "c"})  # as at every start: no effect
    assert other.nodes.dump() == log.meta.nodes.dump()


def test_the_records_of_removed_nodes_are_bounded() -> None:
    nodes = NodeTable()
    nodes.found({A: "a"})
    for number in range(REMOVED_MAX + 50):
        nodes.add(AddNode(1000 + number, "x", number))
    assert len(list(nodes)) == REMOVED_MAX + 2
    assert nodes.get(1000) is None
    newest = nodes.named("x")
    assert newest is not None
    assert newest.node == 1000 + REMOVED_MAX + 49


@pytest.mark.parametrize("seed", range(20))
def test_replicas_agree_on_any_history(seed: int) -> None:
    """One that replays the log and one that was given a snapshot have the same bytes."""
    dice = random.Random(seed)
    log, replayed = Log(), Log()
    for step in range(60):
        node, name = dice.randrange(1, 9), dice.choice("abcd")
        command: MetaCommand = dice.choice([
            AddNode(node, name, step),
            SetStanding(node, dice.choice(list(Standing)), step),
            AssignStream("$G", StreamConfig(name=name, subjects=(name,)), 1, [node, A]),
        ])  # fmt: skip
        log.do(command)
        replayed.do(command)
        names = [record.name for record in log.meta.nodes.present()]
        assert len(names) == len(set(names)), f"seed {seed}: one name, one node"
    given = AssignmentTable()
    given.load_dump(replayed.meta.dump())
    assert given.dump() == log.meta.dump(), f"seed {seed}"


def test_a_name_in_use_is_refused() -> None:
    log = Log()

    def refused(node: NodeId, name: str, *, away: NodeId | None = None) -> str | None:
        return refusal(
            JoinRequest(name, node), log.meta.nodes, 0, connected=lambda other: other != away
        )

    assert refused(D, "d") is None
    assert refused(B, "b") is None  # it is a member, and asks again
    assert refused(NEW_B, "b") == 'another server has the name "b"'
    assert refused(NEW_B, "b", away=B) is None
    log.do(AddNode(NEW_B, "b", 9))
    assert "was removed from the cluster" in (refused(B, "b", away=NEW_B) or "")
    assert refused(NEWER_B, "b", away=NEW_B) is None
