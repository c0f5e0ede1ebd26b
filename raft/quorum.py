"""The maths of majorities: who has won, what a majority holds.

Owns: majority size, vote tally, committed index of a set of match indexes.
May not touch: anything but its arguments.
Spec: Raft sections 5.2 (elections) and 5.3 (commitment)."""

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


class Verdict(Enum):
    PENDING = "pending"
    WON = "won"
    LOST = "lost"


class Ballot:
    """The votes of one (pre-)election. A voter's first answer stands; others are not counted."""

    __slots__ = ("_answers", "_voters")

    def __init__(self, voters: Iterable[NodeId]) -> None:
        self._voters = frozenset(voters)
        self._answers: dict[NodeId, bool] = {}

    def record(self, voter: NodeId, *, granted: bool) -> Verdict:
        if voter in self._voters:
            self._answers.setdefault(voter, granted)
        return self.verdict()

    def verdict(self) -> Verdict:
        needed = majority(len(self._voters))
        granted = sum(self._answers.values())
        if granted >= needed:
            return Verdict.WON
        refused = len(self._answers) - granted
        if len(self._voters) - refused < needed:
            return Verdict.LOST
        return Verdict.PENDING
