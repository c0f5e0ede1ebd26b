"""Sentences of the Raft paper, each as a test. Quotations name their section."""

from __future__ import annotations

import pytest

from raft.core.messages import EntryKind, Message, MessageKind
from raft.core.raft_core import CoreConfig
from raft.types import NO_NODE, NodeId, NotLeader, Role
from tests.support.core_rig import (
    A,
    B,
    C,
    D,
    E,
    Group,
    core_of,
    drain,
    elect,
    entry,
    message,
    terms_of,
)

K = MessageKind


def kinds(messages: list[Message]) -> list[MessageKind]:
    return [m.kind for m in messages]


# -- 5.1 terms


@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.CANDIDATE, Role.LEADER])
def test_any_role_adopts_a_larger_term_and_becomes_follower(role: Role) -> None:
    core = core_of(term=1)
    if role is Role.CANDIDATE:
        core.campaign()
        core.step(message(K.PRE_VOTE_REPLY, B, A, 2))
    elif role is Role.LEADER:
        elect(core, B)
    assert core.role is role
    core.step(message(K.APPEND, C, A, 9))
    assert (core.role, core.term, core.leader, core.vote) == (Role.FOLLOWER, 9, C, NO_NODE)


def test_stale_append_is_refused_and_its_sender_learns_the_term() -> None:
    core = core_of(term=5)
    core.step(message(K.APPEND, B, A, 4, entries=[entry(1, 4)]))
    ready = drain(core)
    assert core.last_index == 0
    assert [(m.kind, m.term) for m in ready.messages] == [(K.HEARTBEAT_REPLY, 5)]


def test_leader_steps_down_when_an_answer_carries_a_larger_term() -> None:
    core = core_of()
    elect(core, B)
    core.step(message(K.HEARTBEAT_REPLY, C, A, 7))
    assert (core.role, core.term, core.leader) == (Role.FOLLOWER, 7, None)


# -- 5.2 elections


def test_servers_start_as_followers_and_stay_while_they_hear_a_leader() -> None:
    core = core_of()
    for _ in range(50):
        core.step(message(K.HEARTBEAT, B, A, 1, context=1))
        for _ in range(9):
            core.tick()
    assert core.role is Role.FOLLOWER


def test_follower_without_leader_requests_pre_votes_then_votes_in_a_new_term() -> None:
    core = core_of(terms=(1, 1), term=1)
    for _ in range(10):
        core.tick()
    requests = drain(core)
    assert core.role is Role.PRE_CANDIDATE
    assert (core.term, core.vote) == (1, NO_NODE), "a pre-vote request promises nothing"
    assert [(m.kind, m.to, m.term, m.index, m.log_term) for m in requests.messages] == [
        (K.PRE_VOTE, B, 2, 2, 1),
        (K.PRE_VOTE, C, 2, 2, 1),
    ]
    core.step(message(K.PRE_VOTE_REPLY, B, A, 2))
    ready = core.ready()
    assert (core.role, core.term, core.vote) == (Role.CANDIDATE, 2, A)
    assert not ready.messages
    assert [(m.kind, m.term) for m in ready.after_persist] == [(K.VOTE, 2), (K.VOTE, 2)]


@pytest.mark.parametrize(
    ("voters", "granted", "refused", "role"),
    [
        (3, 1, 0, Role.LEADER),
        (3, 0, 1, Role.CANDIDATE),
        (3, 0, 2, Role.FOLLOWER),
        (5, 1, 0, Role.CANDIDATE),
        (5, 2, 0, Role.LEADER),
        (5, 2, 2, Role.LEADER),
        (5, 1, 2, Role.CANDIDATE),
        (5, 1, 3, Role.FOLLOWER),
        (4, 1, 0, Role.CANDIDATE),
        (4, 2, 0, Role.LEADER),
        (4, 1, 2, Role.FOLLOWER),
    ],
)
def test_a_majority_decides_the_election(
    voters: int, granted: int, refused: int, role: Role
) -> None:
    nodes = [NodeId(n) for n in range(1, voters + 1)]
    core = core_of(voters=nodes, config=CoreConfig(pre_vote=False))
    core.campaign()
    drain(core)
    answers = [False] * granted + [True] * refused
    for voter, reject in zip(nodes[1:], answers, strict=False):
        core.step(message(K.VOTE_REPLY, voter, A, 1, reject=reject))
    assert core.role is role


@pytest.mark.parametrize(
    ("vote", "candidate", "granted"),
    [(NO_NODE, B, True), (NO_NODE, C, True), (B, B, True), (C, C, True), (B, C, False)],
)
def test_one_vote_per_term_first_come_first_served(
    vote: NodeId, candidate: NodeId, granted: bool
) -> None:
    core = core_of(term=1, vote=vote)
    core.step(message(K.VOTE, candidate, A, 1))
    (reply,) = drain(core).messages
    assert (reply.kind, reply.reject) == (K.VOTE_REPLY, not granted)
    assert core.vote == (candidate if granted else vote)


def test_candidate_follows_the_leader_of_its_term() -> None:
    core = core_of(config=CoreConfig(pre_vote=False))
    core.campaign()
    core.step(message(K.APPEND, B, A, 1))
    assert (core.role, core.leader, core.vote) == (Role.FOLLOWER, B, A)


def test_split_vote_ends_in_another_election_with_a_new_timeout() -> None:
    draws: list[int] = []

    def draw(low: int, high: int) -> int:
        draws.append(high - low)
        return low + 3

    core = core_of(config=CoreConfig(pre_vote=False), draw=draw)
    core.campaign()
    for _ in range(13):
        core.tick()
    assert (core.role, core.term) == (Role.CANDIDATE, 2)
    assert len(draws) > 1
    assert set(draws) == {10}


def test_elected_leader_announces_itself_with_a_noop() -> None:
    core = core_of(terms=(1,), term=1)
    ready = elect(core, B)
    appends = [m for m in ready.messages if m.kind == K.APPEND]
    assert [(m.to, m.index, m.log_term) for m in appends] == [(B, 1, 1), (C, 1, 1)]
    assert [(e.index, e.term, e.kind) for e in appends[0].entries] == [(2, 2, EntryKind.NOOP)]


# -- 5.3 replication


def test_entry_is_committed_once_a_majority_has_it_on_disk_and_then_applied() -> None:
    group = Group(3)
    leader = group.elect(A)
    index = leader.propose(b"x")
    group.settle()
    for node in (A, B, C):
        assert group[node].commit == index
        assert group.hosts[node].applied[-1].data == b"x"


def test_commit_needs_a_majority() -> None:
    group = Group(5)
    leader = group.elect(A)
    before = leader.commit
    group.cut_off(C, D, E)
    leader.propose(b"x")
    group.settle()
    assert leader.commit == before
    group.cut_off(D, E)
    group.tick(2, A)
    assert leader.commit == before + 1


@pytest.mark.parametrize(
    ("previous", "previous_term", "hint"),
    [(3, 3, (3, 2)), (5, 2, (3, 2)), (3, 1, (2, 1)), (2, 2, (2, 1))],
)
def test_follower_rejects_append_when_previous_term_differs(
    previous: int, previous_term: int, hint: tuple[int, int]
) -> None:
    core = core_of(terms=(1, 1, 2), term=3)
    core.step(message(K.APPEND, B, A, 3, index=previous, log_term=previous_term))
    (reply,) = drain(core).messages
    assert reply.reject
    assert reply.index == previous
    assert (reply.hint_index, reply.hint_term) == hint


@pytest.mark.parametrize(
    ("previous", "sent", "after", "written"),
    [
        ((2, 2), [3], [1, 2, 3], [3]),
        ((1, 1), [3, 4], [1, 3, 4], [3, 4]),
        ((0, 0), [1], [1, 2], []),
        ((0, 0), [3], [3], [3]),
        ((1, 1), [2], [1, 2], []),
        ((1, 1), [2, 4], [1, 2, 4], [4]),
    ],
)
def test_follower_deletes_conflicting_entries_and_appends_missing_ones(
    previous: tuple[int, int], sent: list[int], after: list[int], written: list[int]
) -> None:
    core = core_of(terms=(1, 2), term=4)
    index, log_term = previous
    entries = [entry(index + n, term) for n, term in enumerate(sent, 1)]
    core.step(message(K.APPEND, B, A, 4, index=index, log_term=log_term, entries=entries))
    ready = drain(core)
    assert terms_of(core) == after
    assert [e.term for e in ready.entries] == written
    assert ready.messages[-1].index == index + len(sent)


def test_follower_commits_no_further_than_the_entries_it_was_sent() -> None:
    core = core_of(terms=(1, 1, 1), term=1)
    core.step(message(K.APPEND, B, A, 1, index=1, log_term=1, commit=3))
    assert core.commit == 1, "entries 2 and 3 may be from another leader"


FIGURE_7 = [
    (1, 1, 1, 4, 4, 5, 5, 6, 6),
    (1, 1, 1, 4),
    (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    (1, 1, 1, 4, 4, 4, 4),
    (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
    (),
]


@pytest.mark.parametrize("follower", FIGURE_7)
def test_leader_repairs_every_log_of_figure_7(follower: tuple[int, ...]) -> None:
    leader_log = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
    group = Group(3, logs={A: leader_log, B: follower, C: (1,)}, terms={A: 7, B: 7, C: 7})
    group.elect(A)
    group.tick(4, A)
    assert terms_of(group[B]) == terms_of(group[A]) == [*leader_log, 8]


def test_back_off_costs_one_round_trip_per_conflicting_term() -> None:
    ours = (1, *(4,) * 50)
    theirs = (1, *(2,) * 30, *(3,) * 30)
    group = Group(3, logs={A: ours, B: theirs}, terms={A: 4, B: 4, C: 4})
    appends: list[Message] = []

    def record(m: Message) -> bool:
        if m.to == B and m.kind == K.APPEND:
            appends.append(m)
        return m.to != B or m.kind == K.APPEND

    group.passes = record
    group.elect(A)
    assert terms_of(group[B]) == [*ours, 5]
    assert len(appends) <= 4


# -- 5.4 safety


@pytest.mark.parametrize(
    ("ours", "candidate", "granted"),
    [
        ((1,), (1, 1), True),
        ((1,), (2, 1), True),
        ((1, 1), (1, 1), False),
        ((1,), (1, 2), True),
        ((1, 1, 1), (1, 2), True),
        ((2,), (2, 1), False),
        ((2,), (5, 1), False),
    ],
)
@pytest.mark.parametrize("kind", [K.VOTE, K.PRE_VOTE])
def test_voter_denies_a_candidate_whose_log_is_older(
    kind: MessageKind, ours: tuple[int, ...], candidate: tuple[int, int], granted: bool
) -> None:
    core = core_of(terms=ours, term=2)
    core.step(message(kind, B, A, 3, index=candidate[0], log_term=candidate[1]))
    (reply,) = drain(core).messages
    assert reply.reject is not granted


def test_only_entries_of_the_leaders_own_term_are_committed_by_counting_replicas() -> None:
    """Figure 8: an entry of term 2 on a majority is not committed by the leader of term 4."""
    core = core_of(terms=(1, 2), term=3)
    elect(core, B)
    core.persisted(99, term=core.term)
    core.step(message(K.APPEND_REPLY, B, A, 4, index=2))
    assert core.commit == 0
    core.step(message(K.APPEND_REPLY, B, A, 4, index=3))
    assert core.commit == 3, "its own NOOP commits everything before it"


# -- 6 and the thesis: disruption, check-quorum, transfer


@pytest.mark.parametrize("kind", [K.VOTE, K.PRE_VOTE])
def test_follower_that_hears_a_leader_refuses_other_candidates(kind: MessageKind) -> None:
    core = core_of(term=1, draw=lambda low, high: high - 1)
    core.step(message(K.HEARTBEAT, B, A, 1))
    for _ in range(9):
        core.tick()
    core.step(message(kind, C, A, 2, index=9, log_term=1))
    assert all(m.reject for m in drain(core).messages)
    assert core.term == 1
    core.tick()
    core.step(message(kind, C, A, 2, index=9, log_term=1))
    assert not drain(core).messages[0].reject


def test_disconnected_node_does_not_disturb_the_leader_when_it_returns() -> None:
    group = Group(3)
    leader = group.elect(A)
    group.cut_off(C)
    group.tick(200)
    group.heal()
    group.tick(20)
    assert leader.role is Role.LEADER
    assert leader.term == group[C].term == 1


def test_leader_without_a_majority_steps_down_within_an_election_timeout() -> None:
    group = Group(5)
    leader = group.elect(A)
    group.tick(10, A)
    group.cut_off(B, C, D)
    group.tick(20, A)
    assert (leader.role, leader.leader) == (Role.FOLLOWER, None)
    with pytest.raises(NotLeader):
        leader.propose(b"x")


def test_node_ahead_in_term_can_rejoin() -> None:
    group = Group(3, config=CoreConfig(pre_vote=False))
    group.elect(A)
    group.cut_off(C)
    group.tick(60, C)
    assert group[C].term > group[A].term
    group.heal()
    group.tick(60)
    leaders = [core for node in group.hosts if (core := group[node]).role is Role.LEADER]
    assert len(leaders) == 1
    assert len({group[node].term for node in group.hosts}) == 1


def test_transfer_waits_until_the_target_has_caught_up_and_refuses_proposals_meanwhile() -> None:
    group = Group(3)
    leader = group.elect(A)
    group.cut_off(B)
    leader.propose(b"x")
    group.settle()
    leader.transfer_leader(B)
    group.settle()
    assert leader.role is Role.LEADER
    with pytest.raises(NotLeader) as refused:
        leader.propose(b"y")
    assert refused.value.leader is None
    group.heal()
    group.tick(2, A)
    assert group[B].role is Role.LEADER
    assert leader.role is Role.FOLLOWER
    assert group[B].last_index == leader.last_index


def test_transfer_to_an_unreachable_node_ends_after_an_election_timeout() -> None:
    group = Group(3)
    leader = group.elect(A)
    group.cut_off(B)
    leader.propose(b"x")
    leader.transfer_leader(B)
    group.tick(10, A)
    assert leader.role is Role.LEADER
    leader.propose(b"y")


# -- 7 snapshots


def test_snapshot_replaces_a_log_that_does_not_hold_its_position() -> None:
    core = core_of(terms=(1, 1), term=2)
    core.step(message(K.SNAPSHOT, B, A, 2, index=5, log_term=2))
    ready = core.ready()
    assert ready.snapshot is not None
    assert (ready.snapshot.index, ready.snapshot.term) == (5, 2)
    core.step(message(K.APPEND, B, A, 2, index=2, log_term=1, entries=[entry(3, 2)]))
    assert core.last_index == 2, "a log about to be replaced accepts no entries"
    core.snapshot_installed(ready.snapshot.index, ready.snapshot.term)
    (reply,) = [m for m in drain(core).messages if m.kind == K.APPEND_REPLY]
    assert (reply.index, reply.reject) == (5, False)
    assert (core.commit, core.last_index, core.applied_index) == (5, 5, 5)


def test_snapshot_that_the_log_already_holds_keeps_the_entries_after_it() -> None:
    core = core_of(terms=(1, 1, 2), term=2)
    core.step(message(K.SNAPSHOT, B, A, 2, index=2, log_term=1))
    ready = core.ready()
    assert ready.snapshot is None
    assert (core.commit, core.last_index) == (2, 3)
    assert [e.index for e in ready.committed] == [1, 2]


def test_learner_receives_the_log_but_neither_votes_nor_counts() -> None:
    group = Group(1, learners=1)
    leader = group.elect(A)
    group.cut_off(B)
    leader.propose(b"x")
    group.settle()
    assert leader.commit == 2, "commits without the learner"
    group.heal()
    group.tick(4)
    learner = group[B]
    assert (learner.commit, learner.role, learner.leader) == (2, Role.LEARNER, A)
    learner.campaign()
    learner.step(message(K.VOTE, C, B, 9, index=99, log_term=9))
    assert all(m.reject for m in drain(learner).messages)
    assert learner.role is Role.LEARNER


def test_a_candidate_of_an_earlier_term_learns_the_current_term() -> None:
    """Figure 2, RequestVote: the answer carries the term, so that the candidate catches up."""
    core = core_of(term=9)
    core.step(message(K.VOTE, B, A, 5))
    (answer,) = drain(core).messages
    assert (answer.kind, answer.to, answer.term, answer.reject) == (K.VOTE_REPLY, B, 9, True)
    candidate = core_of(node=B, term=4, config=CoreConfig(pre_vote=False))
    candidate.campaign()
    drain(candidate)
    candidate.step(answer)
    assert (candidate.term, candidate.role) == (9, Role.FOLLOWER)
