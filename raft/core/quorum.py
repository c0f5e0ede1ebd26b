"""Majorities: how many votes are enough, and which index a majority holds.

Owns: the size of a majority, the tally of one election, the largest index held by a majority.
May not touch: anything but its arguments.
Spec: Raft sections 5.2 (elections), 5.3 (commitment) and 6 (joint consensus)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from raft.types import NodeId


def majority(voters: int) -> int:
    """How many out of this number of voters are a majority."""
    return voters // 2 + 1


def majority_index(matches: list[int]) -> int:
    """The largest index that a majority holds, given what each voter holds. Sorts its argument."""
    matches.sort()
    return matches[(len(matches) - 1) // 2]


class VoteResult(Enum):
    PENDING = "pending"
    WON = "won"
    LOST = "lost"


class Ballot:
    """The votes of one (pre-)election. The first answer of each voter counts.

    In a joint phase there are two sets of voters; the election must be won in both."""

    __slots__ = ("_answers", "_voter_sets")

    def __init__(self, voters: Iterable[NodeId], outgoing: Iterable[NodeId] = ()) -> None:
        self._voter_sets = [frozenset(voters)]
        old = frozenset(outgoing)
        if old:
            self._voter_sets.append(old)
        self._answers: dict[NodeId, bool] = {}

    def record(self, voter: NodeId, *, granted: bool) -> VoteResult:
        """Count one answer. Answers of nodes that are not voters are ignored."""
        if any(voter in voters for voters in self._voter_sets):
            self._answers.setdefault(voter, granted)
        return self.verdict()

    def verdict(self) -> VoteResult:
        verdicts = [self._count(voters) for voters in self._voter_sets]
        if VoteResult.LOST in verdicts:
            return VoteResult.LOST
        return VoteResult.PENDING if VoteResult.PENDING in verdicts else VoteResult.WON

    def _count(self, voters: frozenset[NodeId]) -> VoteResult:
        needed = majority(len(voters))
        answers = [granted for voter, granted in self._answers.items() if voter in voters]
        granted = sum(answers)
        if granted >= needed:
            return VoteResult.WON
        if len(voters) - (len(answers) - granted) < needed:
            return VoteResult.LOST
        return VoteResult.PENDING
