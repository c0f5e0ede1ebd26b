"""Leader balance: leaderships spread evenly, gently, and leave draining nodes."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.meta.assignments import Assignment
from broker.cluster.meta.leader_balance import (
    EVEN,
    QUIET_S,
    TRANSFERS_MAX,
    UNEVEN,
    LeaderBalance,
    LeaderTransfer,
    next_transfers,
)
from broker.cluster.meta.node_table import NodeTable, SetStanding, Standing
from broker.cluster.peers.leader_table import LeaderTable
from broker.jetstream.config import StreamConfig
from raft import NodeId, Term

A, B, C = (NodeId(n) for n in (1, 2, 3))


def nodes(*draining: NodeId) -> NodeTable:
    table = NodeTable()
    table.found({A: "a", B: "b", C: "c"})
    for node in draining:
        table.set_standing(SetStanding(node, Standing.DRAINING, 1))
    return table


def stream(number: int, *peers: NodeId, members: tuple[NodeId, ...] = ()) -> Assignment:
    config = StreamConfig(name=f"S{number}", subjects=(f"s{number}",), num_replicas=len(peers))
    return Assignment(
        account="$G", config=config, created_ns=1, group=1000 + number,
        peers=[int(p) for p in peers], members=[int(m) for m in members or peers],
    )  # fmt: skip


def transfers(
    streams: list[Assignment], leaders: dict[int, NodeId], table: NodeTable, *,
    tolerance: float = EVEN, away: NodeId | None = None,
) -> list[LeaderTransfer]:  # fmt: skip
    return next_transfers(
        streams, table, leader=leaders.get, alive=lambda node: node != away, tolerance=tolerance
    )


def test_leaders_spread_a_few_at_a_time_until_they_are_even() -> None:
    streams = [stream(n, A, B, C) for n in range(30)]
    leaders = {one.group: A for one in streams}
    rounds = 0
    while found := transfers(streams, leaders, nodes()):
        assert len(found) <= TRANSFERS_MAX
        for one in found:
            assert leaders[one.group] == one.leader
            leaders[one.group] = one.to
        rounds += 1
        assert rounds < 10
    counts = [list(leaders.values()).count(node) for node in (A, B, C)]
    assert max(counts) - min(counts) <= 1


def test_small_differences_are_left_alone_unless_it_was_asked_for() -> None:
    streams = [stream(n, A, B, C) for n in range(12)]
    leaders = {
        one.group: node for one, node in zip(streams, [A] * 5 + [B] * 4 + [C] * 3, strict=True)
    }
    assert transfers(streams, leaders, nodes(), tolerance=UNEVEN) == []
    assert len(transfers(streams, leaders, nodes(), tolerance=EVEN)) == 1


def test_a_draining_node_gives_up_what_it_leads() -> None:
    streams = [stream(n, A, B, C) for n in range(3)]
    leaders = {one.group: A for one in streams}
    found = transfers(streams, leaders, nodes(A), tolerance=UNEVEN)
    assert [one.leader for one in found] == [A, A, A]
    assert {one.to for one in found} == {B, C}


def test_nothing_goes_to_a_node_that_is_away_or_to_a_stream_that_moves() -> None:
    streams = [stream(n, A, B) for n in range(4)]
    leaders = {one.group: A for one in streams}
    assert transfers(streams, leaders, nodes(), away=B) == []
    moving = [stream(n, A, C, members=(A, B)) for n in range(4)]
    assert transfers(moving, leaders, nodes()) == []


@pytest.mark.parametrize("seed", range(50))
def test_it_always_ends(seed: int) -> None:
    dice = random.Random(seed)
    everyone = [A, B, C]
    streams = [stream(n, *dice.sample(everyone, dice.randint(1, 3))) for n in range(40)]
    leaders = {one.group: NodeId(dice.choice(one.peers)) for one in streams}
    table = nodes(*dice.sample(everyone, dice.randint(0, 1)))
    for _ in range(40):
        found = transfers(streams, leaders, table)
        if not found:
            return
        for one in found:
            leaders[one.group] = one.to
    pytest.fail(f"seed {seed}: leaderships go round and round")


def test_by_itself_it_waits_until_no_leader_has_changed_for_a_while() -> None:
    streams = [stream(n, A, B, C) for n in range(9)]
    leaders = LeaderTable(connected=lambda _: True, on_change=lambda _: None)
    for one in streams:
        leaders.note(one.group, Term(1), A)

    class Table(list[Assignment]):
        nodes = nodes()

    balance = LeaderBalance(
        cast(Any, SimpleNamespace(assignments=Table(streams))),
        leaders,
        cast(Any, None),
        lambda _: True,
    )
    assert balance._due(100.0) == []
    assert balance._due(100.0 + QUIET_S - 1) == []
    leaders.note(1000, Term(2), B)  # a change starts the wait again
    assert balance._due(100.0 + QUIET_S) == []
    assert balance._due(100.0 + 2 * QUIET_S) != []
    assert balance._due(101.0 + 2 * QUIET_S) == []  # and a few at a time
