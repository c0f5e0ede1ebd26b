"""Sources as every replica applies them: positions, repeated batches, refusals, stored messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.jetstream.config import Discard, StreamConfig
from broker.jetstream.config.stream_config import External, StreamSource, SubjectTransform
from broker.jetstream.stream import sourcing
from broker.jetstream.stream.sourcing import (
    Sourced,
    SourceMapping,
    source_header,
    source_key,
    source_prefix,
)
from broker.store.block.codec import BlockBuilder
from tests.support.stream_rig import SECOND, Driver, headers

Rows = list[tuple[int, str, dict[str, str]]]


def source(driver: Driver, rows: Rows, *, after: int, key: str = "A > >") -> Sourced:
    builder = BlockBuilder()
    for seq, subject, pairs in rows:
        builder.append(subject.encode(), headers(pairs), b"of %d" % seq, seq=seq)
    prefix = source_prefix(key=key, after=after, time_ns=driver.now)
    result = driver.entry(prefix + builder.build(seal=False))
    assert isinstance(result, Sourced)
    return result


def test_messages_get_sequences_and_times_of_this_stream() -> None:
    driver = Driver(duplicate_window=0)
    driver.publish("s.own")
    assert source(driver, [(7, "a.x", {"X": "1"}), (9, "a.y", {})], after=0) == Sourced(9)
    stored = driver.stream.store.get(2)
    assert stored is not None
    assert (stored.subject, stored.data, stored.time_ns) == (b"a.x", b"of 7", driver.now)
    assert driver.seqs() == [1, 2, 3]


def test_a_batch_that_does_not_follow_the_position_is_ignored() -> None:
    driver = Driver(duplicate_window=0)
    source(driver, [(1, "a", {}), (2, "a", {})], after=0)
    assert source(driver, [(1, "a", {}), (2, "a", {})], after=0) == Sourced(2), "a repeat"
    assert source(driver, [(5, "a", {})], after=4) == Sourced(2), "one between was lost"
    assert source(driver, [(3, "a", {})], after=2, key="B > >") == Sourced(0), "another source"
    assert driver.seqs() == [1, 2]
    assert source(driver, [(3, "a", {})], after=2) == Sourced(3)


def test_positions_survive_purges_checkpoints_and_snapshots() -> None:
    driver = Driver(duplicate_window=0)
    source(driver, [(4, "a", {})], after=0)
    driver.purge()
    assert driver.stream.source_positions == {"A > >": 4}
    batch = driver.db.begin()
    driver.stream.checkpoint(batch)
    driver.db.write(batch)
    assert driver.open().source_positions == {"A > >": 4}
    other = Driver(duplicate_window=0)
    other.stream.restore(list(driver.stream.snapshot()))
    assert other.stream.source_positions == {"A > >": 4}
    assert other.stream.digest() == driver.stream.digest()


def test_a_full_stream_refuses_the_rest_and_accepts_it_later() -> None:
    driver = Driver(duplicate_window=0, max_msgs=2, discard=Discard.NEW)
    rows: Rows = [(n, "a", {}) for n in (1, 2, 3, 4)]
    result = source(driver, rows, after=0)
    assert result.position == 2
    assert result.refused is not None
    assert result.refused.err_code == 10077
    assert source(driver, [(5, "a", {})], after=4) == Sourced(2), (
        "a later message must not overtake the refused one"
    )
    driver.configure(max_msgs=10)
    assert source(driver, rows[2:], after=2) == Sourced(4)


def test_duplicates_are_skipped_only_with_a_duplicate_window() -> None:
    twice: Rows = [(1, "a", {"Nats-Msg-Id": "i"}), (2, "a", {"Nats-Msg-Id": "i"})]
    driver = Driver(duplicate_window=0)
    source(driver, twice, after=0)
    assert driver.seqs() == [1, 2]
    driver = Driver(duplicate_window=10 * SECOND)
    assert source(driver, twice, after=0) == Sourced(2), "it counts as read"
    assert driver.seqs() == [1]


def test_messages_that_can_never_be_stored_are_skipped() -> None:
    driver = Driver(duplicate_window=0, max_msg_size=3)
    assert source(driver, [(1, "a", {}), (2, "a", {})], after=0) == Sourced(2)
    assert driver.seqs() == []


def test_a_ttl_has_an_effect_only_if_allowed() -> None:
    for allowed in (False, True):
        driver = Driver(duplicate_window=0, allow_msg_ttl=allowed)
        source(driver, [(1, "a", {"Nats-TTL": "1"})], after=0)
        driver.now += 5 * SECOND
        driver.expire()
        assert driver.seqs() == ([] if allowed else [1])


def test_the_transform_of_the_stream_is_applied_last() -> None:
    driver = Driver(
        duplicate_window=0, subject_transform=SubjectTransform(src="a.*", dest="z.{{wildcard(1)}}")
    )
    source(driver, [(1, "a.x", {}), (2, "b.x", {})], after=0)
    subjects = [message.subject for s in (1, 2) if (message := driver.stream.store.get(s))]
    assert subjects == [b"z.x", b"b.x"]


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        (StreamSource(name="A"), "A > >", b"A 7 > > a.x"),
        (StreamSource(name="A", filter_subject="a.*"), "A a.* >", b"A 7 a.* > a.x"),
        (
            StreamSource(
                name="A",
                subject_transforms=(
                    SubjectTransform("a.*", "z.{{wildcard(1)}}"),
                    SubjectTransform("b.*", ""),
                ),
            ),
            "A a.*\fb.* z.{{wildcard(1)}}\f>",
            b"A 7 a.*\fb.* z.{{wildcard(1)}}\f> a.x",
        ),
    ],
)
def test_names_and_headers_of_sources(config: StreamSource, key: str, value: bytes) -> None:
    assert source_key(config) == key
    assert source_header(config, seq=7, subject=b"a.x") == value


def test_an_external_source_has_a_different_name() -> None:
    near = StreamSource(name="A")
    far = StreamSource(name="A", external=External("$JS.far.API"))
    assert source_key(near) != source_key(far)
    assert source_key(far).startswith("A:")


def test_mappings_filter_and_rename() -> None:
    config = StreamSource(
        name="A",
        subject_transforms=(
            SubjectTransform("a.*", "z.{{wildcard(1)}}"),
            SubjectTransform("b.*", ""),
        ),
    )
    mapping = SourceMapping(config)
    assert mapping.filters == ("a.*", "b.*")
    assert mapping(b"a.1", seed=0) == b"z.1"
    assert mapping(b"b.1", seed=0) == b"b.1"
    assert SourceMapping(StreamSource(name="A", filter_subject="f.>")).filters == ("f.>",)
    assert SourceMapping(StreamSource(name="A")).filters == ()
    assert StreamConfig(name="S").sources == ()


LIMITS: list[dict[str, object]] = [
    {},
    {"max_msgs": 7},
    {"max_msgs_per_subject": 2},
    {"max_msgs": 7, "discard": Discard.NEW},
    {"max_bytes": 400, "discard": Discard.NEW},
    {"max_msg_size": 60},
    {"duplicate_window": 0},
]
NAMES = ["X", "Nats-Msg-Id", "Nats-Rollup", "Nats-TTL", "Nats-Stream-Source"]


@settings(max_examples=60, deadline=None)
@given(
    limits=st.sampled_from(LIMITS),
    batches=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["a", "b", "c"]),
                st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["1", "sub"]), max_size=2),
            ),
            min_size=1,
            max_size=5,
        ),
        max_size=4,
    ),
    named=st.booleans(),
)
def test_a_block_in_one_call_is_stored_as_row_by_row(
    limits: dict[str, Any], batches: list[list[tuple[str, dict[str, str]]]], *, named: bool
) -> None:
    """Every row of a source has its header; without `named` there are rows without any."""
    states = []
    for whole in (True, False):
        driver = Driver(allow_rollup_hdrs=True, allow_msg_ttl=True, **limits)
        after, answers = 0, []
        for batch in batches:
            rows: Rows = [
                (
                    after + 1 + k,
                    subject,
                    pairs | ({"Nats-Stream-Source": "A 1 > >"} if named else {}),
                )
                for k, (subject, pairs) in enumerate(batch)
            ]
            with pytest.MonkeyPatch.context() as patch:
                if not whole:
                    patch.setattr(sourcing, "_needs_no_checks", lambda _writer, _block: False)
                answers.append(source(driver, rows, after=after))
            after = answers[-1].position
        store = driver.stream.store
        kept = [store.get(seq) for seq in range(1, store.last_seq + 1)]
        state = (store.first_seq, store.last_seq, store.messages, store.bytes, store.num_subjects)
        positions = [(one.position, str(one.refused)) for one in answers]
        states.append((kept, state, positions, driver.stream.source_positions))
    assert states[0] == states[1]


def test_a_plain_block_is_stored_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_row(*_: object) -> None:
        pytest.fail("stored row by row")

    monkeypatch.setattr(sourcing, "_store", no_row)
    driver = Driver()
    rows: Rows = [(seq, "a", {"Nats-Stream-Source": f"A {seq} > > a"}) for seq in (3, 5)]
    assert source(driver, rows, after=0) == Sourced(5)
    assert driver.seqs() == [1, 2]
