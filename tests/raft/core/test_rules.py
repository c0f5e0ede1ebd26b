"""The rules of the core, one by one: commit rule, log matching, vote granting, members in use."""

from __future__ import annotations

import pytest

from raft.core.commitment import Commitment
from raft.core.log import MemoryReader, RaftLog
from raft.core.log_matching import LogMatching
from raft.core.membership import MembersInUse, encode_members
from raft.core.messages import BOTH_NEEDED, EntryKind, MessageKind, PendingMessages
from raft.core.progress import Progress, VoterProgress
from raft.core.vote_granting import LostLog, VoteGranting
from raft.types import NO_NODE, Index, InvariantViolation, Members, NodeId, Term
from tests.support.core_rig import A, B, C, D, E, entry, log_of, message


def log_with(*terms: int) -> RaftLog:
    reader = MemoryReader()
    if terms:
        reader.write(log_of(*terms))
    return RaftLog(reader)


def voters(*sets: tuple[bool, list[int]]) -> VoterProgress:
    """Sets of (whether the leader votes, match index of each other voter)."""
    return VoterProgress(
        [
            (own, [Progress(Index(match + 1), voter=True, match=Index(match)) for match in others])
            for own, others in sets
        ]
    )


@pytest.mark.parametrize(
    ("term_start", "sets", "commit"),
    [
        (1, [(True, [3, 0])], 3),
        (1, [(True, [0, 0])], 0),
        (1, [(True, [2, 1, 0, 0])], 1),
        (4, [(True, [3, 3])], 0),  # a majority holds entry 3, but it is of an earlier term
        (3, [(True, [3, 0])], 3),  # the first entry of the own term commits those before it
        (1, [(True, [3, 3]), (True, [1, 0])], 1),  # joint phase: both majorities are needed
        (1, [(False, [2, 1, 1])], 1),  # a leader that is not a voter does not count itself
    ],
)
def test_commit_rule(term_start: int, sets: list[tuple[bool, list[int]]], commit: int) -> None:
    commitment = Commitment(log_with(1, 1, 2), stored=Index(0))
    moved = commitment.advance(voters(*sets), term_start=Index(term_start))
    assert (commitment.index, moved) == (commit, commit > 0)


def test_commit_index_counts_only_what_the_leader_has_flushed() -> None:
    log = log_with(1)
    log.append(entry(2, 1))
    commitment = Commitment(log, stored=Index(0))
    commitment.advance(voters((True, [2, 0])), term_start=Index(1))
    assert commitment.index == 1


def test_commit_index_never_goes_back() -> None:
    commitment = Commitment(log_with(1, 1, 1), stored=Index(2))
    assert not commitment.advance(voters((True, [1, 1])), term_start=Index(1))
    commitment.follow_leader(Index(1))
    commitment.raise_to(Index(1))
    assert commitment.index == 2


def test_stale_append_does_not_cut_entries_that_match() -> None:
    log = log_with(1, 1, 1)
    matching = LogMatching(log, Commitment(log, stored=Index(0)))
    assert matching.accept(Index(0), Term(0), [entry(1, 1)]) == 1
    assert log.last_index == 3


def test_append_with_a_gap_is_an_invariant_violation() -> None:
    log = log_with(1)
    matching = LogMatching(log, Commitment(log, stored=Index(0)))
    with pytest.raises(InvariantViolation, match="sent to follow"):
        matching.accept(Index(1), Term(1), [entry(3, 1)])


def granting(log: RaftLog, *, lives: int = 0) -> VoteGranting:
    commit = Commitment(log, stored=Index(0))
    members = MembersInUse(
        A, begun_with=Members((A, B, C)), configurations=log.configurations, commit=commit
    )
    return VoteGranting(log, LostLog(A, lives=lives, members=members, pending=PendingMessages()))


@pytest.mark.parametrize(
    ("vote", "leader", "granted"),
    [(NO_NODE, None, True), (B, None, True), (B, B, True), (C, None, False), (NO_NODE, C, False)],
)
def test_one_vote_per_term(vote: NodeId, leader: NodeId | None, granted: bool) -> None:
    request = message(MessageKind.VOTE, B, A, 2, index=1, log_term=1)
    assert granting(log_with(1)).grants_vote(request, vote=vote, leader=leader) is granted


def test_member_that_lost_its_log_grants_no_vote() -> None:
    request = message(MessageKind.VOTE, B, A, 2, index=9, log_term=1)
    rules = granting(log_with(), lives=1)
    assert not rules.grants_vote(request, vote=NO_NODE, leader=None)
    assert not rules.grants_pre_vote(
        request, term=Term(1), vote=NO_NODE, leader=None, hears_leader=False
    )


def test_member_that_lost_its_log_votes_for_the_other_one_of_two() -> None:
    request = message(MessageKind.VOTE, B, A, 2, index=9, log_term=1)
    request.hint_term = BOTH_NEEDED
    rules = granting(log_with(), lives=1)
    assert rules.grants_vote(request, vote=NO_NODE, leader=None)
    assert not rules.grants_vote(request, vote=C, leader=None)
    assert rules.grants_pre_vote(
        request, term=Term(1), vote=NO_NODE, leader=None, hears_leader=False
    )


@pytest.mark.parametrize(
    ("members", "one_of_two"),
    [
        (Members((A, B)), True),
        (Members((A, B), (C,)), True),
        (Members((A, B, C)), False),
        (Members((A,)), False),
        (Members((A, B), (), (A, B, C)), False),
        (Members((B, C), (A,)), False),
    ],
)
def test_one_of_two_voters(members: Members, one_of_two: bool) -> None:
    log = log_with(1)
    commit = Commitment(log, stored=Index(1))
    known = MembersInUse(A, begun_with=members, configurations=log.configurations, commit=commit)
    known.refresh()
    assert known.is_one_of_two() is one_of_two


def test_configuration_is_in_use_before_it_is_committed_and_until_it_is_cut() -> None:
    log = log_with(1)
    commit = Commitment(log, stored=Index(1))
    begun_with = Members((A, B, C))
    members = MembersInUse(
        A, begun_with=begun_with, configurations=log.configurations, commit=commit
    )
    assert not members.refresh()
    changed = Members((B, C, D, E), (), (A, B, C))
    log.append(entry(2, 1, encode_members(changed), EntryKind.CONFIG))
    assert members.refresh()
    assert (members.members, members.voter) == (changed, True)
    log.append(entry(3, 1, encode_members(Members((B, C, D, E))), EntryKind.CONFIG))
    assert members.refresh()
    assert not members.voter
    assert members.is_outgoing_voter(), "the joint configuration may still need us"
    log.cut(Index(2))
    assert members.refresh()
    assert members.members == begun_with
