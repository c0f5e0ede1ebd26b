"""The maths of majorities: who has won, what a majority holds.

Owns: majority size, vote tally, committed index of a set of match indexes, all of them also
for two electorates at once.
May not touch: anything but its arguments.
Spec: Raft sections 5.2 (elections), 5.3 (commitment) and 6 (joint consensus)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from raft.types import NodeId


def majority(voters: int) -> int:
    """How many of so many voters make a majority."""
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
    """The votes of one (pre-)election. A voter's first answer stands; others are not counted.

    With two electorates it is won in both or not at all."""

    __slots__ = ("_answers", "_electorates")

    def __init__(self, voters: Iterable[NodeId], outgoing: Iterable[NodeId] = ()) -> None:
        self._electorates = [frozenset(voters)]
        old = frozenset(outgoing)
        if old:
            self._electorates.append(old)
        self._answers: dict[NodeId, bool] = {}

    def record(self, voter: NodeId, *, granted: bool) -> VoteResult:
        if any(voter in electorate for electorate in self._electorates):
            self._answers.setdefault(voter, granted)
        return self.verdict()

    def verdict(self) -> VoteResult:
        verdicts = [self._count(electorate) for electorate in self._electorates]
        if VoteResult.LOST in verdicts:
            return VoteResult.LOST
        return VoteResult.PENDING if VoteResult.PENDING in verdicts else VoteResult.WON

    def _count(self, electorate: frozenset[NodeId]) -> VoteResult:
        needed = majority(len(electorate))
        answers = [granted for voter, granted in self._answers.items() if voter in electorate]
        granted = sum(answers)
        if granted >= needed:
            return VoteResult.WON
        if len(electorate) - (len(answers) - granted) < needed:
            return VoteResult.LOST
        return VoteResult.PENDING
