"""Texts of the API: times, durations, names, hashes, subject mappings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.jetstream.config.names import (
    consumer_name,
    get_hash,
    has_path_separator,
    nuid,
    valid_asset_name,
)
from broker.jetstream.config.transforms import mapping_problem
from broker.jetstream.times import NS_MAX, NS_MIN, go_duration, parse_rfc3339, rfc3339

S = 1_000_000_000


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0001-01-01T00:00:00Z"),
        (1, "1970-01-01T00:00:00.000000001Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
        (1_577_836_800 * S, "2020-01-01T00:00:00Z"),
        (1_577_836_800 * S + 500_000_000, "2020-01-01T00:00:00.5Z"),
        (1_577_836_800 * S + 120, "2020-01-01T00:00:00.00000012Z"),
        (4_102_444_800 * S, "2100-01-01T00:00:00Z"),
    ],
)
def test_times_to_text_and_back(ns: int, text: str) -> None:
    assert rfc3339(ns) == text
    assert parse_rfc3339(text) == ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2020-01-01T01:00:00+01:00", 1_577_836_800 * S),
        ("2019-12-31T22:30:00-01:30", 1_577_836_800 * S),
        ("2020-01-01t00:00:00.1234567899z", 1_577_836_800 * S + 123_456_789),
        ("1970-01-01T00:00:00Z", 0),
        ("0001-01-02T00:00:00Z", NS_MIN),
        ("9999-12-31T23:59:59Z", NS_MAX),
    ],
)
def test_other_spellings_and_out_of_range_times(text: str, ns: int) -> None:
    assert parse_rfc3339(text) == ns


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "2020-01-01", "2020-01-01T00:00:00", "2020-13-01T00:00:00Z",
     "2020-01-01T00:00:00.Z", "2020-01-01 00:00:00Z", "2020-01-01T25:00:00Z"],
)  # fmt: skip
def test_invalid_times_raise(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_rfc3339(text)


@given(st.integers(NS_MIN, NS_MAX).filter(bool))
def test_every_time_round_trips(ns: int) -> None:
    assert parse_rfc3339(rfc3339(ns)) == ns


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (5, "5ns"),
        (1_500, "1.5µs"),
        (2_000_000, "2ms"),
        (1_500_000_000, "1.5s"),
        (60 * S, "1m0s"),
        (3_600 * S, "1h0m0s"),
        (5_400 * S + 1, "1h30m0.000000001s"),
        (-90 * S, "-1m30s"),
    ],
)
def test_durations(ns: int, text: str) -> None:
    assert go_duration(ns) == text


@pytest.mark.parametrize(
    ("text", "hash_"),
    [("nats-0", "S1Nunr6R"), ("nats-1", "yrzKKRBu"), ("nats-2", "cnrtt3eg")],
)
def test_name_hash_matches_the_peer_ids_of_nats_server(text: str, hash_: str) -> None:
    assert get_hash(text) == hash_


def test_generated_names_depend_only_on_the_random_bytes() -> None:
    one, other = consumer_name(bytes(range(22))), consumer_name(bytes(range(1, 23)))
    assert one != other
    assert one == consumer_name(bytes(range(22)))
    assert len(nuid(bytes(range(22)))) == 22
    assert valid_asset_name(one)


@pytest.mark.parametrize(
    ("name", "is_valid"),
    [("S", True), ("a-b_c$", True), ("", False), ("a.b", False), ("a b", False), ("a/b", False),
     ("a\\b", False), ("a*", False), (">", False), ("a\tb", False), ("a\nb", False), ("é", True)],
)  # fmt: skip
def test_asset_names(name: str, *, is_valid: bool) -> None:
    assert valid_asset_name(name) is is_valid
    assert has_path_separator(name) == ("/" in name or "\\" in name)


@pytest.mark.parametrize(
    ("src", "dest"),
    [
        ("a", ""),
        ("", "x.>"),
        ("a.*", "b.$1"),
        ("a.*.*", "b.{{wildcard(2)}}.{{wildcard(1)}}"),
        ("a.>", "b.>"),
        ("a.*", "b.{{partition(10,1)}}"),
        ("a", "b.{{random(5)}}"),
        ("a.*", "b.{{split(1,-)}}"),
        ("a.*", "b.{{SliceFromLeft(1,3)}}"),
        ("a", "$KV.b"),
    ],
)
def test_valid_mappings(src: str, dest: str) -> None:
    assert mapping_problem(src, dest) is None


@pytest.mark.parametrize(
    ("src", "dest"),
    [("a.*", "b.*"), ("a.>", "b"), ("a", "b.>"), ("a.*", "b.$2"), ("a", "b..c"), ("a.*", "b.{{x}}"),
     ("a.*", "b.{{partition(x)}}"), ("a.*", "{{wildcard()}}"), ("a.*", "{{wildcard(1,2)}}")],
)  # fmt: skip
def test_invalid_mappings(src: str, dest: str) -> None:
    assert mapping_problem(src, dest) is not None
