"""Placement by stored bytes: what nodes tell, and how it is weighed against replicas."""

from __future__ import annotations

from broker.cluster.limits.stored_bytes import CHANGE_MIN, KEY, StoredBytes
from broker.cluster.meta.placement import PlacementView, choose_peers, node_loads
from raft import NodeId

A, B, C = NODES = [NodeId(n) for n in (1, 2, 3)]
GB = 1 << 30


class Hello:
    def __init__(self) -> None:
        self.told: list[int] = []

    def tell(self, **facts: int) -> None:
        self.told.append(facts[KEY])

    def fact(self, node: NodeId, name: str) -> int:
        assert name == KEY
        return 7 * node


def test_a_node_tells_changes_that_matter() -> None:
    hello = Hello()
    sizes = [0, CHANGE_MIN, CHANGE_MIN + 1, CHANGE_MIN + 2, GB, GB + GB // 9, GB // 2, 0]
    stored = StoredBytes(hello, iter(sizes).__next__)
    for _ in sizes:
        stored.check()
    assert hello.told == [CHANGE_MIN + 1, GB, GB // 2, 0]
    assert stored.of(B) == 14


def chosen(replicas: dict[NodeId, int], sizes: dict[NodeId, int]) -> list[NodeId]:
    """The order in which nodes would be chosen."""
    loads = node_loads(NODES, lambda n: replicas.get(n, 0), lambda n: sizes.get(n, 0))
    view = PlacementView(NODES, lambda _: True, lambda n: loads[n])
    found = choose_peers(view, name="S", replicas=len(NODES))
    assert isinstance(found, list)
    return found


def test_without_data_replicas_are_spread_by_number() -> None:
    assert chosen({A: 2, B: 1, C: 0}, {}) == [C, B, A]


def test_a_node_with_large_streams_gets_fewer() -> None:
    assert chosen({A: 3, B: 3, C: 3}, {A: 5 * GB, B: GB, C: 2 * GB}) == [B, C, A]
    assert chosen({A: 2, B: 3, C: 3}, {A: 50 * GB}) == [*chosen({B: 3, C: 3}, {})[1:], A]


def test_small_data_does_not_outweigh_many_replicas() -> None:
    """One stream of a few bytes on an otherwise empty node does not fill the others."""
    assert chosen({A: 1, B: 100, C: 100}, {A: 10, B: GB, C: GB})[0] == A
    assert chosen({A: 3, B: 4, C: 4}, {A: 100 << 20})[0] == A


def test_an_empty_cluster_has_no_preference_by_load() -> None:
    assert set(node_loads(NODES, lambda _: 0, lambda _: 0).values()) == {0.0}
