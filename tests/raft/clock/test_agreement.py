"""Marzullo's algorithm, against a search over all points."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raft.clock.agreement import Agreement, Interval, agreement

INTERVALS = st.lists(
    st.tuples(st.integers(-20, 20), st.integers(0, 12)).map(lambda one: Interval(one[0], sum(one))),
    min_size=1,
    max_size=7,
)


def test_two_of_three_agree() -> None:
    found = agreement([Interval(0, 10), Interval(5, 15), Interval(100, 110)])
    assert found == Agreement(2, Interval(5, 10))


def test_intervals_that_touch_agree() -> None:
    assert agreement([Interval(0, 5), Interval(5, 9)]) == Agreement(2, Interval(5, 5))


def test_no_clock_no_agreement() -> None:
    assert agreement([]) is None


@given(INTERVALS)
def test_no_point_is_in_more_intervals(intervals: list[Interval]) -> None:
    def count(point: int) -> int:
        return sum(one.low <= point <= one.high for one in intervals)

    found = agreement(intervals)
    assert found is not None
    assert found.sources == max(map(count, range(-20, 33)))
    assert {count(point) for point in range(found.interval.low, found.interval.high + 1)} == {
        found.sources
    }
