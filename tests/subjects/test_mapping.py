"""Subject mappings, function by function. Expected values come from nats-server."""

from __future__ import annotations

import pytest

from broker.subjects.mapping import BadMapping, Mapping

MAPPED = [
    ("foo.*.*", "bar.$2.$1", "foo.a.b", "bar.b.a"),
    ("foo.*.>", "bar.{{wildcard(1)}}.>", "foo.a.b.c", "bar.a.b.c"),
    (">", "x.>", "a.b", "x.a.b"),
    ("", "x.>", "a.b", "x.a.b"),
    ("foo.*", "bar.$1", "foo.a.b", None),
    ("foo", "bar", "foo", "bar"),
    ("foo", "bar", "fo", None),
    ("foo.$x", "bar.$x", "foo.$x", "bar.$x"),
    ("*", "bar.{{partition(10,1)}}", "foo", "bar.3"),
    ("*.*", "bar.{{partition(10,1,2)}}", "foo.bar", "bar.0"),
    ("foo.*", "bar.{{partition(0,1)}}", "foo.a", "bar.0"),
    ("foo.bar", "x.{{partition(5)}}", "foo.bar", "x.1"),
    ("*", "{{splitfromleft(1,3)}}", "12345", "123.45"),
    ("*", "{{SplitFromRight(1,3)}}", "12345", "12.345"),
    ("*", "{{splitfromleft(1,9)}}", "12345", "12345"),
    ("*", "{{slicefromleft(1,3)}}", "1234567890", "123.456.789.0"),
    ("*", "{{slicefromright(1,3)}}", "1234567890", "1.234.567.890"),
    ("*", "{{slicefromleft(1,2)}}", "1234", "12.34"),
    ("*", "{{split(1,-)}}", "-abc-def--ghi-", "abc.def.ghi"),
    ("*", "{{left(1,2)}}.{{ right( 1 , 2 ) }}", "12345", "12.45"),
    ("*", "{{left(1,9)}}", "12345", "12345"),
]  # fmt: skip


@pytest.mark.parametrize(("src", "dest", "subject", "mapped"), MAPPED)
def test_subjects_are_mapped(src: str, dest: str, subject: str, mapped: str | None) -> None:
    result = Mapping(src, dest)(subject.encode())
    assert result == (mapped.encode() if mapped is not None else None)


def test_a_random_token_depends_only_on_the_seed() -> None:
    mapping = Mapping("*", "x.{{random(7)}}.{{random(7)}}")
    drawn = {seed: mapping(b"a", seed=seed) for seed in range(100)}
    assert drawn == {seed: mapping(b"a", seed=seed) for seed in range(100)}
    assert len(set(drawn.values())) > 20
    assert all(0 <= int(token) < 7 for made in drawn.values() for token in made.split(b".")[1:])


BAD = [
    ("foo.*", "bar.>", "invalid subject"),
    ("foo", "{{left(1,2)}}", "wildcard index out of range in {{left(1,2)}}"),
    ("*", "{{left(2,2)}}", "wildcard index out of range in {{left(2,2)}}: [2]"),
    ("*", "{{unknown(1)}}", "unknown function in {{unknown(1)}}"),
    ("*", "{{split(1,a b)}}", "function argument is invalid or in the wrong format"),
]


@pytest.mark.parametrize(("src", "dest", "text"), BAD)
def test_invalid_mappings_are_refused(src: str, dest: str, text: str) -> None:
    with pytest.raises(BadMapping) as raised:
        Mapping(src, dest)
    assert text in str(raised.value)


def test_long_subjects_are_not_kept() -> None:
    """65,536 of 4 KB would be 270 MB, for every stream with a transform."""
    mapping = Mapping("s.*", "t.$1")
    for at in range(10):
        assert mapping(b"s.%d%s" % (at, b"x" * 300)) == b"t.%d%s" % (at, b"x" * 300)
        mapping(b"s.%d" % at)
    assert len(mapping._memo) == 10
