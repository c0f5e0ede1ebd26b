"""Pattern sets, checked against comparing the patterns pair by pair."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.subjects import Patterns, matcher, matches

tokens = st.sampled_from([b"a", b"b", b"*"])
patterns = st.builds(
    lambda words, rest: b".".join([*words, *([b">"] if rest or not words else [])]),
    st.lists(tokens, max_size=3),
    st.booleans(),
)


@given(st.lists(patterns, max_size=6),
       st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=4))  # fmt: skip
def test_matching_agrees_with_pairwise_comparison(known: list[bytes], words: list[bytes]) -> None:
    subject = b".".join(words)
    assert Patterns(known).take(subject) == any(matches(subject, one) for one in known)


@given(st.lists(st.sampled_from([b"a", b"b", b"", b"*", b">", b"a\n"]), min_size=1, max_size=4),
       patterns)  # fmt: skip
def test_a_compiled_pattern_matches_the_same_subjects(words: list[bytes], pattern: bytes) -> None:
    subject = b".".join(words)
    if subject != pattern:  # a pattern is not a literal subject
        assert bool(matcher(pattern)(subject)) == matches(subject, pattern)
