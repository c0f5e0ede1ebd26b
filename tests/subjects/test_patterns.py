"""Pattern sets, checked against comparing the patterns pair by pair."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from broker.subjects import Patterns, collides, is_subset, matcher, matches

tokens = st.sampled_from([b"a", b"b", b"*"])
patterns = st.builds(
    lambda words, rest: b".".join([*words, *([b">"] if rest or not words else [])]),
    st.lists(tokens, max_size=3),
    st.booleans(),
)


@given(st.lists(patterns, max_size=6), patterns)
def test_overlap_agrees_with_pairwise_comparison(known: list[bytes], asked: bytes) -> None:
    tree = Patterns(known)
    others = [other for other in known if other != asked]
    assert tree.meets_another(asked) == any(collides(asked, other) for other in others)
    assert tree.within_another(asked) == any(is_subset(asked, other) for other in others)


@given(st.lists(patterns, max_size=6),
       st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=4))  # fmt: skip
def test_matching_agrees_with_pairwise_comparison(known: list[bytes], words: list[bytes]) -> None:
    subject = b".".join(words)
    assert Patterns(known).take(subject) == any(matches(subject, one) for one in known)


MANY = 20_000


def test_a_long_list_of_wildcard_subjects_is_checked_in_one_pass() -> None:
    """Pair by pair this would be 200 million comparisons: minutes of CPU time."""
    subjects = tuple(f"s.{i}.*" for i in range(MANY))
    began = time.thread_time()
    tree = Patterns(subject.encode() for subject in subjects)
    assert not any(tree.meets_another(s.encode()) for s in subjects)
    assert not any(tree.within_another(s.encode()) for s in subjects)
    assert time.thread_time() - began < 10


@given(st.lists(st.sampled_from([b"a", b"b", b"", b"*", b">", b"a\n"]), min_size=1, max_size=4),
       patterns)  # fmt: skip
def test_a_compiled_pattern_matches_the_same_subjects(words: list[bytes], pattern: bytes) -> None:
    subject = b".".join(words)
    if subject != pattern:  # a pattern is not a literal subject
        assert bool(matcher(pattern)(subject)) == matches(subject, pattern)
