"""The voters of the meta group: each step is safe, and the steps reach the table of nodes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from broker.cluster.meta.meta_voters import (
    CAUGHT_UP_WITHIN,
    MetaMembers,
    MetaTransfer,
    may_vote,
    next_meta_step,
)
from broker.cluster.meta.node_table import AddNode, NodeTable, SetStanding, Standing
from raft import Index, NodeId, Role, Term
from raft.core.ready import CoreStatus, PeerStatus

A, B, C, D, NEW_B = (NodeId(n) for n in (1, 2, 3, 4, 22))
NAMES = {A: "a", B: "b", C: "c"}
END = Index(500)


def table(*commands: AddNode | SetStanding) -> NodeTable:
    nodes = NodeTable()
    nodes.found(NAMES)
    for command in commands:
        if isinstance(command, AddNode):
            nodes.add(command)
        else:
            nodes.set_standing(command)
    return nodes


def seen(
    *voters: NodeId, learners: tuple[NodeId, ...] = (), leader: NodeId = A,
    behind: tuple[NodeId, ...] = (), outgoing: tuple[NodeId, ...] = (),
) -> CoreStatus:  # fmt: skip
    def peer(node: NodeId) -> PeerStatus:
        match = Index(END - CAUGHT_UP_WITHIN - 1 if node in behind else END)
        return PeerStatus(node, "replicate", match, Index(match + 1), True, 0)

    return CoreStatus(
        node=leader, role=Role.LEADER, term=Term(3), vote=leader, leader=leader, commit=END,
        applied=END, first_index=Index(1), last_index=END, persisted_index=END, transfer_to=None,
        voters=voters, learners=learners, outgoing=outgoing, members_index=Index(7),
        peers=tuple(peer(n) for n in (*voters, *learners) if n != leader),
    )  # fmt: skip


def step(status: CoreStatus, nodes: NodeTable, *away: NodeId) -> object:
    return next_meta_step(status, nodes, connected=lambda node: node not in away)


def test_nothing_to_do() -> None:
    assert step(seen(A, B, C), table()) is None
    assert step(seen(A, B, C), table(), C) is None  # a member that is away stays one


def test_a_new_member_learns_then_votes() -> None:
    nodes = table(AddNode(D, "d", 1))
    assert step(seen(A, B, C), nodes) == MetaMembers((A, B, C), (D,))
    assert step(seen(A, B, C, learners=(D,), behind=(D,)), nodes) is None
    assert step(seen(A, B, C, learners=(D,)), nodes, D) is None
    assert step(seen(A, B, C, learners=(D,)), nodes) == MetaMembers((A, B, C, D))


def test_a_change_that_is_not_committed_is_waited_for() -> None:
    nodes = table(AddNode(D, "d", 1))
    assert step(seen(A, B, C, learners=(D,), outgoing=(A, B)), nodes) is None


def test_incarnations_change_places_in_one_step() -> None:
    nodes = table(AddNode(NEW_B, "b", 1))
    assert step(seen(A, B, C), nodes, B) == MetaMembers((A, B, C), (NEW_B,))
    assert step(seen(A, B, C, learners=(NEW_B,), behind=(NEW_B,)), nodes, B) is None
    assert step(seen(A, B, C, learners=(NEW_B,)), nodes, B) == MetaMembers((A, C, NEW_B))
    assert step(seen(A, C, NEW_B), nodes, B) is None


def test_an_incarnation_that_was_replaced_while_it_learned_is_dropped() -> None:
    nodes = table(AddNode(NEW_B, "b", 1), AddNode(D, "b", 2))
    assert step(seen(A, B, C, learners=(NEW_B,)), nodes, B, NEW_B) == MetaMembers((A, C), (D,))


def test_a_removed_member_leaves_and_a_removed_leader_transfers_first() -> None:
    nodes = table(SetStanding(B, Standing.REMOVED, 1))
    assert step(seen(A, B, C), nodes) == MetaMembers((A, C))
    assert step(seen(A, B, C, leader=B), nodes) == MetaTransfer(A)
    assert step(seen(A, B, C, leader=B, behind=(A,)), nodes) == MetaTransfer(C)


def test_a_node_that_leaves_loses_its_vote_first_and_learns_until_it_is_removed() -> None:
    """Four nodes, one of them dead and leaving: until it has no vote, no other may fail."""
    leaving = SetStanding(D, Standing.LEAVING, 2)
    nodes = table(AddNode(D, "d", 1), leaving)
    assert step(seen(A, B, C, D), nodes, D) == MetaMembers((A, B, C), (D,))
    assert step(seen(A, B, C, learners=(D,)), nodes) is None, "it gets no vote again"
    assert step(seen(A, B, C, D, leader=D), nodes) == MetaTransfer(A)
    nodes.set_standing(SetStanding(D, Standing.MEMBER, 3))  # the removal is undone
    assert step(seen(A, B, C, learners=(D,)), nodes) == MetaMembers((A, B, C, D))


def test_a_vote_counts_until_its_removal_is_committed() -> None:
    assert may_vote(seen(A, B, C), C)
    assert may_vote(seen(A, B, outgoing=(A, B, C)), C)
    assert not may_vote(seen(A, B), C)
    assert may_vote(replace(seen(A, B), members_index=Index(END + 1)), C)


def test_no_step_leads_to_voters_without_a_connected_majority() -> None:
    nodes = table(SetStanding(B, Standing.REMOVED, 1))
    assert step(seen(A, B, C), nodes, C) is None
    assert step(seen(A, B, C), nodes, B) == MetaMembers((A, C))


@pytest.mark.parametrize("seed", range(200))
def test_any_history_settles_and_never_loses_its_majority(seed: int) -> None:
    dice = random.Random(seed)
    nodes, status = table(), seen(A, B, C)
    numbers = iter(range(100, 200))
    away: set[NodeId] = set()
    for time in range(40):
        present = [NodeId(record.node) for record in nodes.present()]
        if time < 20 and dice.random() < 0.3:
            record = nodes.get(dice.choice(present))
            assert record is not None
            if dice.random() < 0.5 and record.node != status.node:
                nodes.add(AddNode(next(numbers), record.name, time))
                away.add(NodeId(record.node))
            elif len(present) > 2 and dice.random() < 0.3:
                left = dice.choice((Standing.REMOVED, Standing.LEAVING))
                nodes.set_standing(SetStanding(record.node, left, time))
            else:
                nodes.add(AddNode(next(numbers), f"n{time}", time))
        change = step(status, nodes, *away)
        if isinstance(change, MetaTransfer):
            assert change.to in status.voters
            status = seen(*status.voters, learners=status.learners, leader=change.to)
        elif isinstance(change, MetaMembers):
            new_voters = set(change.voters) - set(status.voters)
            assert new_voters <= set(status.learners), f"seed {seed}: a vote before a log"
            if set(change.voters) != set(status.voters):
                up = [node for node in change.voters if node not in away]
                assert 2 * len(up) > len(change.voters), f"seed {seed}"
            assert status.node in change.voters
            status = seen(*change.voters, learners=change.learners, leader=status.node)
    wanted = {r.node for r in nodes.present() if r.standing is not Standing.LEAVING}
    assert set(status.voters) == wanted, f"seed {seed}"
