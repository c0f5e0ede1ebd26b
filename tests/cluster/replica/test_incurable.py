"""A damaged stream: given up if there is another replica, otherwise served and named."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.replica.membership import Membership
from broker.jetstream.config.stream_config import Storage
from raft import NodeId

ME = NodeId(1)


def membership(replicas: Any, **more: Any) -> Membership:
    needed: dict[str, Any] = {
        field.name: None
        for field in fields(Membership)
        if field.default is MISSING and field.default_factory is MISSING
    }
    return Membership(**{**needed, "node": ME, "replicas": replicas, **more})


def test_a_damaged_stream_without_another_replica_is_named_until_it_is_gone() -> None:
    only = SimpleNamespace(
        storage=Storage.FILE, assignment=SimpleNamespace(name="S", members=[int(ME)])
    )
    replicas: dict[int, Any] = {7: only}
    damaged = membership(replicas)
    assert damaged.incurable() == []
    damaged.damaged(7, ValueError("a checksum does not match"))
    [sentence] = damaged.incurable()
    assert "stream S is damaged and has no other replica: a checksum does not match" in sentence
    del replicas[7]
    assert damaged.incurable() == []


class Replicas(dict[int, Any]):
    """Notes what is opened."""

    def __init__(self, *held: tuple[int, Any]) -> None:
        super().__init__(held)
        self.opened: list[int] = []

    def open(self, assignment: Any, _voters: object) -> None:
        self.opened.append(assignment.group)


@pytest.mark.parametrize(
    ("members", "opened", "spawned"),
    [([1, 2, 3], [], ["heal S", "rejoin S"]), ([1], [7], [])],
    ids=["of three", "the only one"],
)
def test_data_that_was_given_up_is_not_opened_after_a_failure_of_the_disk(
    members: list[int], opened: list[int], spawned: list[str]
) -> None:
    """The failure came before it was fetched again, and closed the replica."""
    config = SimpleNamespace(storage=Storage.FILE)
    assignment = SimpleNamespace(
        name="S", group=7, members=members, holders=members, founders=members, config=config
    )
    replica = SimpleNamespace(storage=Storage.FILE, assignment=assignment)
    replicas, names = Replicas((7, replica)), list[str]()

    def spawn(work: Coroutine[Any, Any, None], name: str) -> None:
        work.close()
        names.append(name)

    storage = SimpleNamespace(lost_log=lambda _: False)
    damaged = membership(replicas, storage=storage, spawn=spawn)
    damaged.damaged(7, ValueError("a checksum does not match"))
    del replicas[7]
    damaged.hold(cast(Any, assignment))
    assert (replicas.opened, names) == (opened, spawned)
