"""Reconfiguration: which step the leader takes next, and that the steps reach the target."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from broker.cluster.meta.assignments import Assignment
from broker.cluster.replica.reconfiguration import (
    CAUGHT_UP_WITHIN,
    Change,
    HandOverTo,
    Record,
    Wait,
    next_step,
)
from broker.jetstream.config import StreamConfig
from raft import Index, NodeId, Role, Term
from raft.core.ready import CoreStatus, PeerStatus

A, B, C, D, E = (NodeId(n) for n in range(1, 6))
END = Index(1000)


def assigned(*peers: NodeId, members: tuple[NodeId, ...]) -> Assignment:
    return Assignment(
        account="$G",
        config=StreamConfig(name="S", num_replicas=len(peers)),
        created_ns=1,
        group=1001,
        peers=list(peers),
        founders=[A],
        members=list(members),
    )


def seen(
    *voters: NodeId, learners: tuple[NodeId, ...] = (), leader: NodeId = A, lag: int = 0
) -> CoreStatus:
    """The leader's view; all others are this many entries behind."""
    others = [node for node in (*voters, *learners) if node != leader]
    match = Index(END - lag)
    return CoreStatus(
        node=leader, role=Role.LEADER, term=Term(3), vote=leader, leader=leader, commit=END,
        applied=END, first_index=Index(1), last_index=END, persisted_index=END, transfer_to=None,
        voters=voters, learners=learners, members_index=Index(7),
        peers=tuple(PeerStatus(n, "replicate", match, Index(match + 1), True, 0) for n in others),
    )  # fmt: skip


def step(status: CoreStatus, assignment: Assignment, *, away: NodeId | None = None) -> object:
    return next_step(status, assignment, connected=lambda node: node != away, recorded=True)


def test_nothing_to_do() -> None:
    assert step(seen(A, B, C), assigned(C, A, B, members=(B, A, C))) is None


def test_new_members_are_learners_first() -> None:
    target = assigned(A, B, C, members=(A,))
    assert step(seen(A), target) == Change((A,), (B, C))
    assert isinstance(step(seen(A, learners=(B, C), lag=CAUGHT_UP_WITHIN + 1), target), Wait)
    assert step(seen(A, learners=(B, C), lag=CAUGHT_UP_WITHIN), target) == Record((A, B, C))


def test_new_members_vote_once_that_is_recorded() -> None:
    status = seen(A, learners=(B, C))
    assert step(status, assigned(A, B, C, members=(A, B, C))) == Change((A, B, C))
    assert step(status, assigned(A, B, C, members=(A, B))) == Record((A, B, C))


def test_no_step_before_the_assignment_is_on_disk() -> None:
    target = assigned(A, B, C, members=(A,))
    for status in (seen(A), seen(A, learners=(B, C))):
        unsafe = next_step(status, target, connected=lambda _: True, recorded=False)
        assert isinstance(unsafe, Wait)


def test_disconnected_members_and_those_that_need_a_snapshot_do_not_vote_yet() -> None:
    target = assigned(A, B, C, members=(A, B, C))
    status = seen(A, learners=(B, C))
    assert isinstance(step(status, target, away=C), Wait)
    fetching = tuple(replace(peer, state="snapshot") for peer in status.peers)
    assert isinstance(step(replace(status, peers=fetching), target), Wait)


def test_removed_members_leave_the_record_last() -> None:
    target = assigned(A, members=(A, B, C))
    assert step(seen(A, B, C), target) == Change((A,))
    assert step(seen(A), target) == Record((A,))


@pytest.mark.parametrize(
    "status",
    [
        replace(seen(A), outgoing=(A, B, C)),
        replace(seen(A), members_index=Index(END + 1)),
        replace(seen(A, B, C), transfer_to=B),
    ],
)
def test_one_change_at_a_time(status: CoreStatus) -> None:
    assert isinstance(step(status, assigned(A, members=(A, B, C))), Wait)


def test_a_leader_that_should_leave_hands_over_first() -> None:
    target = assigned(B, C, members=(A, B, C))
    assert step(seen(A, B, C), target) == HandOverTo(B)
    assert step(seen(A, B, C), target, away=B) == HandOverTo(C)
    assert step(seen(B, A, C, leader=B), target) == Change((B, C))


def test_a_leader_without_a_successor_adds_members_first() -> None:
    target = assigned(B, members=(A, B))
    assert step(seen(A), target) == Change((A,), (B,))
    assert step(seen(A, learners=(B,)), target) == Change((B,))


def test_learners_that_are_no_longer_wanted_are_removed() -> None:
    assert step(seen(A, learners=(B, C)), assigned(A, members=(A,))) == Change((A,))
    target = assigned(A, B, members=(A, B))
    assert step(seen(A, B, learners=(C,)), target) == Change((A, B))


@pytest.mark.parametrize("seed", range(200))
def test_the_group_reaches_its_target_from_any_state(seed: int) -> None:
    """Steps are taken while the target changes and leaders die: it ends, and at no time does a
    node vote that is not recorded in the meta group."""
    dice = random.Random(seed)
    voters: tuple[NodeId, ...] = (A,)
    learners: tuple[NodeId, ...] = ()
    leader = A
    assignment = assigned(A, members=(A,))
    for turn in range(200):
        if turn < 100 and dice.random() < 0.2:
            peers = dice.sample([A, B, C, D, E], dice.randint(1, 5))
            assignment = msgspec.structs.replace(assignment, peers=[int(p) for p in peers])
        if (turn < 100 and dice.random() < 0.2) or leader not in voters:
            leader = dice.choice(voters)
        learners = tuple(n for n in learners if n in assignment.holders) if turn % 7 else learners
        status = seen(*voters, learners=learners, leader=leader)
        match step(status, assignment):
            case Change(voters=wanted, learners=learning):
                voters, learners = wanted, learning
            case Record(members=members):
                recorded = [int(member) for member in members]
                assignment = msgspec.structs.replace(assignment, members=recorded)
            case HandOverTo(to=heir):
                leader = heir
            case None if turn >= 100:
                break
        assert set(voters) <= set(assignment.members)
    assert set(voters) == set(assignment.peers) == set(assignment.members)
    assert not learners
