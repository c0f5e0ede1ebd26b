"""Entries that need a search of the whole stream are prepared in steps; a replica that did not
prepare them applies them the same way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from broker.jetstream.commands.stream_commands import DeleteConsumer, UpdateConfig, encode
from broker.jetstream.commands.writer_entry import WriterMark, writer_entry
from broker.jetstream.config import DeliverPolicy
from broker.jetstream.config.stream_config import Retention
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.consumer.start_position import sequences
from broker.store import segments
from broker.store.index.subject_filter import SubjectFilter
from broker.store.messages import MessageStore
from tests.support.stream_rig import Driver, block

ROWS, SEGMENTS = 1024, 3
STEP_MAX = 513  # subjects that one step looks at
EXPECTED = {
    "Nats_Expected_Last_Subject_Sequence": "0",
    "Nats_Expected_Last_Subject_Sequence_Subject": "s.*.none",
}


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many subjects were compared with a filter or looked up."""
    monkeypatch.setattr(segments, "SEAL_ROWS", ROWS)
    count = [0]

    def counted(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def wrapped(self: Any, subject: bytes) -> Any:
            count[0] += 1
            return original(self, subject)

        monkeypatch.setattr(kind, name, wrapped)

    counted(SubjectFilter, "__call__")
    counted(MessageStore, "last_of_subject")
    return count


def filled() -> Driver:
    driver = Driver()
    for _ in range(SEGMENTS):
        driver.batch([(b"s.%d.x" % at, {}, b"") for at in range(ROWS)])
    driver.batch([(b"s.end.y", {}, b"")])
    return driver


ENTRIES: dict[str, Callable[[Driver], Any]] = {
    "last": lambda driver: driver.consumer("C", "s.*.none", deliver_policy=DeliverPolicy.LAST),
    "last per subject": lambda driver: driver.consumer(
        "C", "s.*.x", deliver_policy=DeliverPolicy.LAST_PER_SUBJECT
    ),
    "expected sequence": lambda driver: driver.publish("s.new", **EXPECTED),
    "expected sequence of a writer": lambda driver: driver.entry(
        writer_entry(
            WriterMark("w", 0, 0),
            block([(b"s.new", {k.replace("_", "-"): v for k, v in EXPECTED.items()}, b"x")]),
            time_ns=driver.now,
            bounds=None,
        )
    ),
}


def prepared(driver: Driver, looked_at: list[int]) -> list[int]:
    """Every entry is prepared from now on. Returns the longest step, and what `apply` looked at."""
    apply = driver.stream.apply
    most = [0, 0]

    def in_steps(index: int, data: bytes) -> object:
        assert driver.stream.is_long(data)
        before = looked_at[0]
        for _ in driver.stream.prepare(data):
            most[0], before = max(most[0], looked_at[0] - before), looked_at[0]
        most[0], before = max(most[0], looked_at[0] - before), looked_at[0]
        result = apply(index, data)
        most[1] = looked_at[0] - before
        return result

    driver.stream.apply = in_steps  # type: ignore[method-assign]
    return most


@pytest.mark.parametrize("kind", ENTRIES)
def test_each_step_is_short_and_the_result_the_same(looked_at: list[int], kind: str) -> None:
    ours, twin = filled(), filled()
    most = prepared(ours, looked_at)
    ENTRIES[kind](ours)
    ENTRIES[kind](twin)
    assert ours.results == twin.results
    one, other = ours.stream.consumers.get("C"), twin.stream.consumers.get("C")
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.encode() == other.encode()
    assert most[0] <= STEP_MAX
    assert most[1] <= 2  # only the rows of the growing block


def test_what_was_prepared_for_one_consumer_is_not_used_for_the_next(looked_at: list[int]) -> None:
    driver = filled()
    prepared(driver, looked_at)
    driver.consumer("C", "s.*.x", deliver_policy=DeliverPolicy.LAST_PER_SUBJECT)
    driver.consumer("C", "s.*.x", deliver_policy=DeliverPolicy.LAST_PER_SUBJECT)  # as it is
    del driver.stream.apply  # type: ignore[method-assign]
    driver.batch([(b"s.5.x", {}, b"newer")])
    driver.consumer("D", "s.*.x", deliver_policy=DeliverPolicy.LAST_PER_SUBJECT)
    assert driver.stream.consumers["D"].initial[-1] == driver.stream.store.last_seq


def test_other_entries_need_no_preparation() -> None:
    driver = Driver()
    driver.publish("s.a")
    driver.publish("s.a", Nats_Msg_Id="1")
    driver.consumer("C")
    driver.drop_consumer("C")
    driver.noted([(b"s.a", {}, b"x")])
    driver.noted([(b"s.a", {"Nats-Expected-Last-Subject-Sequence-Subject": "s.*"}, b"x")])
    long = [driver.stream.is_long(data) for data in driver.log]
    assert long == [False, False, True, False, False, True]


@pytest.mark.parametrize("removed", [False, True])
def test_the_last_match_is_found_again_after_changes(removed: bool) -> None:
    driver = Driver()
    driver.publish("s.a.y")
    first = driver.publish("s.b.y")
    matches = driver.stream.store.last_matches
    assert matches.find(b"s.*.y") == first
    assert matches.find(b"s.*.none") == 0
    newer = driver.publish("s.c.y")
    assert matches.find(b"s.*.y") == newer
    if removed:
        driver.delete(newer)
        assert matches.find(b"s.*.y") == first
    driver.publish("s.d.none")
    assert matches.find(b"s.*.none") == driver.stream.store.last_seq


@pytest.mark.parametrize("acked", [True, False])
def test_deleting_a_consumer_of_an_interest_stream_compares_few_messages_per_step(
    monkeypatch: pytest.MonkeyPatch, acked: bool
) -> None:
    """Three consumers; one goes. What only that one needed is removed, by both replicas alike."""
    settled = [0]
    original = Consumer.settled

    def counted(self: Consumer, seq: int) -> bool:
        settled[0] += 1
        return original(self, seq)

    monkeypatch.setattr(Consumer, "settled", counted)
    ours, twin = (Driver(retention=Retention.INTEREST) for _ in range(2))
    for driver in (ours, twin):
        driver.consumer("A", "s.*.x")
        driver.consumer("B", "s.*.y")
        driver.consumer("C", "s.*.x", "s.*.z")
        driver.batch([(b"s.%d.%c" % (at, b"xyz"[at % 3]), {}, b"") for at in range(900)])
        if acked:
            driver.deliver("A", *range(1, 10, 3))
            driver.ack("A", *range(1, 10, 3))
    most = prepared(ours, settled)
    ours.drop_consumer("C")
    twin.drop_consumer("C")
    assert ours.seqs() == twin.seqs()
    assert len(ours.seqs()) == 600 - 3 * acked
    assert most[0] <= 2 * 128
    assert most[1] == 0


def test_what_was_searched_for_one_delete_is_not_used_for_the_next() -> None:
    driver = Driver(retention=Retention.INTEREST)
    for name in "AB":
        driver.consumer(name, f"s.{name}")
    driver.batch([(b"s.A", {}, b""), (b"s.B", {}, b"")])
    for _ in driver.stream.prepare(encode(DeleteConsumer(driver.now, "A"))):
        pass
    driver.run(DeleteConsumer(driver.now, "A", 10**6))  # another incarnation: refused
    driver.consumer("D", "s.A")
    driver.drop_consumer("B")
    assert driver.seqs() == [1]


def test_first_messages_are_kept_in_eight_bytes_each() -> None:
    kept = sequences(range(10_000))
    assert sys.getsizeof(kept) < 9 * 10_000
    driver = filled()
    driver.consumer("D", "s.*.x", deliver_policy=DeliverPolicy.LAST_PER_SUBJECT)
    consumer = driver.stream.consumers["D"]
    assert sys.getsizeof(consumer.initial) < 10 * len(consumer.initial)
    again = Consumer.decode(driver.stream, consumer.encode())
    assert again.initial.tolist() == consumer.initial.tolist() == sorted(again.initial)


def test_a_consumer_of_an_interest_stream_changes_its_filters_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What nobody needs any more was searched for when the entry was applied, on every replica:
    11 s for a PING beside 200,000 messages."""
    asked = [0]
    original = Consumer.wants

    def counted(self: Consumer, subject: bytes) -> bool:
        asked[0] += 1
        return original(self, subject)

    monkeypatch.setattr(Consumer, "wants", counted)
    ours, twin = (Driver(retention=Retention.INTEREST) for _ in range(2))
    for driver in (ours, twin):
        driver.consumer("A", "s.*.x")
        driver.consumer("B", "s.*.y", "s.*.z")
        driver.batch([(b"s.%d.%c" % (at, b"xyz"[at % 3]), {}, b"") for at in range(3000)])
    most = prepared(ours, asked)
    for driver in (ours, twin):
        driver.consumer("B", "s.*.y")
    assert ours.seqs() == twin.seqs()
    assert len(ours.seqs()) == 2000
    assert [c.encode() for c in ours.stream.consumers.values()] == [
        c.encode() for c in twin.stream.consumers.values()
    ]
    assert 0 < most[0] <= 1024
    assert most[1] == 0
    for driver in (ours, twin):  # refused: nothing that was prepared is left
        driver.consumer("B", "s.*.x", deliver_policy=DeliverPolicy.LAST)
    assert ours.results[-1] == twin.results[-1]
    assert ours.stream._consumers._unneeded is None
    assert ours.seqs() == twin.seqs()


def test_a_limit_for_all_subjects_is_searched_for_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was one step: 0.4 s for 100,000 subjects with two messages each."""
    monkeypatch.setattr(segments, "SEAL_ROWS", 400)
    drivers = [Driver(), Driver()]
    for driver in drivers:
        driver.consumer("C")
        for _ in range(3):
            driver.batch([(b"s.%d" % (at % 90), {}, b"") for at in range(400)])
    prepared, at_once = (driver.stream for driver in drivers)
    limited = structs.replace(prepared.config, max_msgs_per_subject=1)
    data = encode(UpdateConfig(drivers[0].now, limited))
    assert prepared.is_long(data)
    taken = 0
    for _ in prepared.prepare(data):
        assert prepared.store.messages == 1200
        taken += 1
    assert taken >= 3
    at_once.apply(10_000, data)
    with monkeypatch.context() as patch:
        patch.setattr(segments.View, "runs", property(lambda _: pytest.fail("searched again")))
        prepared.apply(10_000, data)
    assert prepared.store.messages == 90
    assert prepared.digest() == at_once.digest()
