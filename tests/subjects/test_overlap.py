"""Overlap and inclusion of patterns, checked against comparing them pair by pair."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.subjects import (
    STEP_ITEMS,
    PatternIndex,
    any_included,
    any_overlap,
    collides,
    finish,
    first_overlap,
    is_subset,
)

tokens = st.sampled_from([b"a", b"b", b"*"])
patterns = st.builds(
    lambda words, rest: b".".join([*words, *([b">"] if rest or not words else [])]),
    st.lists(tokens, max_size=3),
    st.booleans(),
)
lists = st.lists(patterns, max_size=7)


@given(st.dictionaries(patterns, st.sampled_from("xyz"), max_size=7), lists, patterns)
def test_an_index_agrees_with_pairwise_comparison(
    owned: dict[bytes, str], dropped: list[bytes], asked: bytes
) -> None:
    index = PatternIndex()
    for pattern, owner in owned.items():
        index.add(pattern, owner)
    finish(index.overlapping(asked))  # builds tables, which removals must keep up to date
    for pattern in dropped:
        index.discard(pattern)
        owned.pop(pattern, None)
    for but in "xyz":
        others = [pattern for pattern, owner in owned.items() if owner != but]
        meets = any(collides(asked, other) for other in others)
        assert finish(index.overlapping(asked, but=but)) == meets
        within = any(is_subset(asked, other) for other in others)
        assert finish(index.including(asked, but=but)) == within


@given(lists, lists)
def test_lists_agree_with_pairwise_comparison(some: list[bytes], others: list[bytes]) -> None:
    meeting = [
        at for at, one in enumerate(some) if any(collides(one, later) for later in some[at + 1 :])
    ]
    assert finish(first_overlap(some)) == (meeting[0] if meeting else None)
    included = any(is_subset(a, b) or is_subset(b, a) for a, b in combinations(some, 2))
    assert finish(any_included(some)) == included
    assert finish(any_overlap(some, others)) == any(collides(a, b) for a in some for b in others)


@given(lists, lists, patterns, st.integers(0, 20))
def test_a_check_may_be_interleaved_with_changes(
    kept: list[bytes], changed: list[bytes], asked: bytes, turn: int
) -> None:
    """What is in the set all the time is found; patterns come and go meanwhile."""
    index = PatternIndex()
    for pattern in kept:
        index.add(pattern)
    filler = [b"a.%d.*" % i for i in range(2 * STEP_ITEMS)]
    for pattern in filler:
        index.add(pattern)
    steps, second = index.overlapping(asked), index.overlapping(asked)
    change = iter([p for p in changed if p not in kept])
    found = None
    for at in range(10_000):
        try:
            next(steps if at % 3 else second)
        except StopIteration as end:
            found = end.value if at % 3 else found
            if at % 3:
                break
        if at >= turn:
            pattern = next(change, None)
            if pattern is not None:
                (index.discard if pattern in filler else index.add)(pattern)
    assert found or not any(collides(asked, one) for one in kept)
    now = [p for p in {*kept, *filler, *changed} if _contains(index, p)]
    assert finish(index.overlapping(asked)) == any(collides(asked, one) for one in now)


def _contains(index: PatternIndex, pattern: bytes) -> bool:
    return any(pattern in family.patterns for family in index._families.values())


HALF = 8000


@pytest.mark.parametrize(
    "make",
    [
        lambda i: (b"q.a%d.x" % i, b"q.*.y%d" % i),
        lambda i: (b"s.%d.*" % i, b"t.*.%d" % i),
        lambda i: (b"s%d" % i, b"s%d.>" % i),
    ],
)
def test_long_lists_take_a_few_lookups_for_each_pattern(make: object) -> None:
    """Along a trie the first of them took 64 million steps: 30 s on the event loop."""
    index, work = PatternIndex(), 0
    every = [pattern for i in range(HALF) for pattern in make(i)]  # type: ignore[operator]
    for pattern in every:
        assert not finish(index.overlapping(pattern))
        index.add(pattern)
        work = index.lookups
    assert work < 4 * len(every)


def test_a_check_is_cut_into_steps() -> None:
    index = PatternIndex()
    for i in range(HALF):
        index.add(b"q.a%d.x" % i)
    steps = index.overlapping(b"q.*.y")  # its table has 8,000 entries to fill
    assert sum(1 for _ in steps) >= HALF // STEP_ITEMS - 1
