"""A table of streams whose log was given up: it is never newer than its log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.meta.assignments import AssignmentTable, AssignStream, encode_command
from broker.cluster.meta.meta_group import MetaGroup
from broker.jetstream.config import StreamConfig
from raft import Index, SnapshotMeta, Term
from raft.store.records import GroupRecord


def meta_group() -> MetaGroup:
    """As loaded from the state of a run before the log was given up."""
    table = AssignmentTable()
    config = StreamConfig(name="S", subjects=("s",))
    table.apply(Index(3), encode_command(AssignStream("$G", config, 1, [1])))
    nothing = cast(Any, None)
    return MetaGroup(
        assignments=table,
        stored=cast(Any, SimpleNamespace(write=lambda: None)),
        host=nothing,
        on_assigned=nothing,
        on_reconfigured=nothing,
        on_removed=nothing,
        on_leader=nothing,
        on_nodes=nothing,
        on_written=nothing,
        on_flushed=nothing,
    )


@pytest.mark.parametrize(("installing", "applied"), [(0, 0), (2, 0), (3, 3)])
def test_a_table_newer_than_its_log_begins_again_unless_it_was_installed(
    installing: int, applied: int
) -> None:
    group = meta_group()
    record = GroupRecord(installing=SnapshotMeta(Index(installing), Term(1), None))
    group.log_given_up(cast(Any, SimpleNamespace(record=record)))
    assert group.assignments.applied == applied
    assert (group.assignments.get("$G", "S") is not None) == bool(applied)
