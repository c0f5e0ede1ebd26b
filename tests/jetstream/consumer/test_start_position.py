"""The sequences with which a consumer of last_per_subject begins, while messages are removed."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from broker.jetstream.consumer.start_position import TAKEN_OUT_SINGLY, sequences, take_out


class Counted(array):  # type: ignore[type-arg]  # not subscriptable before Python 3.12
    """An array that counts how often everything behind an item was moved."""

    moves = 0

    def __delitem__(self, where: Any) -> None:
        self.moves += 1
        super().__delitem__(where)


@pytest.mark.parametrize("many", [1, TAKEN_OUT_SINGLY, TAKEN_OUT_SINGLY + 1, 5000])
def test_many_are_taken_out_in_one_pass(many: int) -> None:
    """50 microseconds for each of them, in a list of 400,000: a purge stopped the node."""
    dice = random.Random(many)
    known = sorted(dice.sample(range(1, 20_000), 9000))
    gone = sorted(dice.sample(range(1, 20_000), many))
    held = Counted("Q", known)
    take_out(held, gone)
    assert list(held) == [seq for seq in known if seq not in set(gone)]
    assert held.moves <= TAKEN_OUT_SINGLY


def test_nothing_is_left_of_what_is_taken_out_completely() -> None:
    held = sequences(range(1, 2000))
    take_out(held, range(1, 2000))
    assert held == sequences()
