"""The time that a leader stamps into commands."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.replica.replica import Replica

HOUR = 3600 * 10**9


@pytest.mark.parametrize(
    ("last", "guess", "stamps"),
    [
        (5, False, [HOUR, HOUR]),  # as the cluster agrees
        (5, True, [5, 5]),  # an hour ahead, perhaps: a window of message ids would end at once
        (0, True, [HOUR, HOUR]),  # of a stream in which nothing is stored
        (2 * HOUR, False, [2 * HOUR, 2 * HOUR]),  # never back
    ],
)
def test_time_stands_still_while_only_the_own_clock_is_known(
    last: int, guess: bool, stamps: list[int]
) -> None:
    services = SimpleNamespace(now_ns=lambda: HOUR, time_is_guess=lambda: guess)
    stream = SimpleNamespace(last_time=last)
    leader = SimpleNamespace(_last_stamp_ns=0, stream=stream, _services=services)
    assert [Replica.stamp(cast(Any, leader)) for _ in stamps] == stamps
