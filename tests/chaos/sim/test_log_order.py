"""The check of answers against the log equals a search for a linearization, and finds lies."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Operation, Result
from chaos.sim.promises.log_order import TrueWithin, WrittenLog, check_log_order
from chaos.sim.promises.stored import StoredRow

WRITES = 3


def answer(lo: int, hi: int, invoked: int, completed: int, *, writes: bool = False) -> TrueWithin:
    result = Result.OK if completed else Result.UNKNOWN
    return TrueWithin(Operation(0, "c", "o", {}, invoked, result, completed), lo, hi, writes)


@st.composite
def histories(draw: st.DrawFn) -> list[TrueWithin]:
    """Each write of a short log, and some reads, with any times."""

    def times() -> tuple[int, int]:
        invoked = draw(st.integers(0, 8))
        return invoked, draw(st.sampled_from([0, *range(invoked + 1, 11)]))

    made = [answer(seq, seq, *times(), writes=True) for seq in range(1, WRITES + 1)]
    for _ in range(draw(st.integers(0, 4))):
        lo = draw(st.integers(0, WRITES))
        made.append(answer(lo, draw(st.integers(lo, WRITES)), *times()))
    return made


def linearizable(answers: list[TrueWithin]) -> bool:
    """Wing and Gong: try every operation that may come next, in every state that is reached."""

    def before(one: TrueWithin, other: TrueWithin) -> bool:
        done = one.operation
        return bool(done.completed_ns) and done.completed_ns <= other.operation.invoked_ns

    @cache
    def search(left: frozenset[int], position: int) -> bool:
        if not left:
            return True
        for at in left:
            one = answers[at]
            if any(before(answers[other], one) for other in left if other != at):
                continue
            here = position + 1 if one.writes else position
            if one.lo <= here <= one.hi and search(left - {at}, here):
                return True
        return False

    return search(frozenset(range(len(answers))), 0)


@given(histories())
def test_the_check_accepts_what_a_search_can_linearize(answers: list[TrueWithin]) -> None:
    try:
        check_log_order("S", answers)
        accepted = True
    except BrokenPromise:
        accepted = False
    assert accepted == linearizable(answers)


def test_a_read_older_than_an_acked_write_is_found() -> None:
    write, read = answer(2, 2, 10, 20, writes=True), answer(1, 1, 21, 22)
    with pytest.raises(BrokenPromise, match="had shown position 2 before"):
        check_log_order("S", [write, read])
    check_log_order("S", [write, answer(1, 1, 15, 22)])


def test_a_torn_read_is_found() -> None:
    rows = [StoredRow(1, b"a", b"1"), StoredRow(2, b"b", b"2"), StoredRow(3, b"a", b"3")]
    log = WrittenLog("S", rows)
    read = Operation(0, "c", "read", {}, 0)
    together = log.all_of(read, [log.last_was(read, "a", 1), log.last_was(read, "b", 2)])
    assert (together.lo, together.hi) == (2, 2)
    with pytest.raises(BrokenPromise, match="never true as a whole"):
        log.all_of(read, [log.last_was(read, "a", 3), log.last_was(read, "b", 0)])
    with pytest.raises(BrokenPromise, match="never written"):
        log.last_was(read, "a", 2)
