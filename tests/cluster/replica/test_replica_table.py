"""The replicas of a node: what is added and removed, and who is asked."""

from __future__ import annotations

from typing import Any

import pytest

from broker.cluster.meta.assignments import (
    Assignment,
    AssignmentTable,
    AssignStream,
    encode_command,
)
from broker.cluster.replica.replica_table import ReplicaTable
from broker.jetstream.config import StreamConfig
from raft import Index, Term


class Member:
    def __init__(self, assignment: Assignment) -> None:
        self.group = assignment.group
        self.term = Term(3)
        self.leading: object | None = None
        self.ended: list[str] = []

    def leave(self) -> None:
        self.ended.append("leave")

    def delete(self) -> None:
        self.ended.append("delete")

    def close(self) -> None:
        self.ended.append("close")


@pytest.fixture
def assignments() -> AssignmentTable:
    table = AssignmentTable()
    for at, name in enumerate("ABC", 1):
        config = StreamConfig(name=name, subjects=(name,))
        table.apply(Index(at), encode_command(AssignStream("$G", config, 1, [1])))
    return table


@pytest.fixture
def replicas(assignments: AssignmentTable) -> ReplicaTable:
    opened: Any = lambda assignment, _voters: Member(assignment)  # noqa: E731
    table = ReplicaTable(assignments, opened)
    for assignment in assignments.of_account("$G")[:2]:
        table.open(assignment, [])
    return table


def test_a_stream_is_found_by_name_where_a_replica_is_held(replicas: ReplicaTable) -> None:
    a = replicas.of_stream("$G", "A")
    assert a is not None
    assert replicas.get(a.group) is a
    assert a.group in replicas
    assert replicas.of_stream("$G", "C") is replicas.of_stream("X", "A") is None


def test_only_serving_leaders_count_as_led(replicas: ReplicaTable) -> None:
    first, second = (member for member in replicas)
    member: Any = second
    member.leading = object()
    assert replicas.led(first.group) is None
    assert replicas.led(second.group) is second
    assert (replicas.leads(first.group), replicas.leads(second.group)) == (False, True)
    assert replicas.led_terms() == [(second.group, Term(3))]


def test_each_way_out_of_the_table_ends_the_replica(replicas: ReplicaTable) -> None:
    first, second = (member for member in replicas)
    members: list[Any] = [first, second]
    replicas.leave(first)
    assert replicas.delete(second.group)
    assert not replicas.delete(second.group)
    assert [member.ended for member in members] == [["leave"], ["delete"]]
    assert len(replicas) == 0


def test_discard_and_close_keep_the_data(replicas: ReplicaTable) -> None:
    first, second = (member for member in replicas)
    members: list[Any] = [first, second]
    replicas.discard(first.group)
    replicas.close()
    assert [member.ended for member in members] == [["close"], ["close"]]
    assert list(replicas) == [second]
