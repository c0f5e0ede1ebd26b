"""Majorities, compared with a brute-force model that tries all subsets."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from raft.core.quorum import Ballot, VoteResult, majority, majority_index
from raft.types import NodeId


def brute_force_majority_index(matches: list[int]) -> int:
    """The largest index for which some majority of voters all hold it."""
    size = len(matches) // 2 + 1
    return max(min(quorum) for quorum in combinations(matches, size))


@given(st.lists(st.integers(0, 12), min_size=1, max_size=7))
def test_majority_index_is_the_largest_that_some_majority_holds(matches: list[int]) -> None:
    assert majority_index(list(matches)) == brute_force_majority_index(matches)


@given(st.integers(1, 30))
def test_two_majorities_always_share_a_voter(voters: int) -> None:
    assert 2 * majority(voters) > voters
    assert 2 * (majority(voters) - 1) <= voters


def brute_force_verdict(voters: int, answers: dict[int, bool]) -> VoteResult:
    """Try every possible answer of the voters that have not answered."""
    missing = voters - len(answers)
    yes = sum(answers.values())
    ends = {2 * (yes + more) > voters for more in range(missing + 1)}
    if 2 * yes > voters:
        return VoteResult.WON
    return VoteResult.PENDING if True in ends else VoteResult.LOST


@given(st.integers(1, 7), st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=12))
def test_ballot_agrees_with_trying_every_outcome(
    voters: int, answers: list[tuple[int, bool]]
) -> None:
    ballot = Ballot(NodeId(n) for n in range(1, voters + 1))
    counted: dict[int, bool] = {}
    for voter, granted in answers:
        if voter <= voters:
            counted.setdefault(voter, granted)
        verdict = ballot.record(NodeId(voter), granted=granted)
        assert verdict is brute_force_verdict(voters, counted)
