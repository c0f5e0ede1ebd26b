"""Limits, purge, delete, configuration changes, mirrors: stored messages and stream state."""

from __future__ import annotations

import pytest

from broker.jetstream.config import Discard, Storage
from broker.jetstream.errors import JetStreamError
from tests.support.stream_rig import SECOND, Driver


def filled(count: int, **config: object) -> Driver:
    driver = Driver(**config)
    for k in range(count):
        driver.publish(f"s.{'ab'[k % 2]}", str(k))
    return driver


def refusal(result: object) -> tuple[int, str]:
    assert isinstance(result, JetStreamError)
    return int(result.err_code), result.description


def test_max_msgs_drops_the_oldest() -> None:
    driver = filled(5, max_msgs=3)
    assert driver.seqs() == [3, 4, 5]
    driver.batch([(b"s.a", {}, b"")] * 5)
    assert driver.seqs() == [8, 9, 10]


def test_max_bytes_drops_the_oldest() -> None:
    driver = filled(5, max_bytes=34 * 2)  # 30 + "s.a" + one byte each
    assert driver.seqs() == [4, 5]
    driver.publish(data="x" * 30)
    assert driver.seqs() == [6]


def test_max_msgs_per_subject_leaves_gaps() -> None:
    driver = filled(6, max_msgs_per_subject=1)
    assert driver.seqs() == [5, 6]
    driver = Driver(max_msgs_per_subject=2)
    for subject in ("s.a", "s.b", "s.a", "s.a", "s.c"):
        driver.publish(subject)
    assert driver.seqs() == [2, 3, 4, 5]
    driver.publish("s.a")
    assert driver.seqs() == [2, 4, 5, 6]
    assert driver.stream.state(deleted_details=True).deleted == (3,)


def test_max_age_removes_messages_that_have_reached_it() -> None:
    driver = Driver(max_age=10 * SECOND)
    assert driver.stream.next_expiry(driver.now) is None
    begin = driver.now
    driver.publish()
    driver.now += SECOND
    driver.publish()
    assert driver.stream.next_expiry(driver.now) == begin + 10 * SECOND
    driver.now = begin + 10 * SECOND - 1
    assert driver.expire() == 0
    driver.now += 1
    assert driver.expire() == 1
    assert driver.seqs() == [2]
    driver.now += SECOND
    assert driver.expire() == 1
    state = driver.stream.state()
    assert (state.first_seq, state.last_seq, state.first_ts) == (3, 2, 0)
    assert state.last_ts == begin + SECOND


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"max_msgs": 2}, [5, 6]),
        ({"max_bytes": 34 * 3}, [4, 5, 6]),
        ({"max_msgs_per_subject": 2}, [3, 4, 5, 6]),
        ({"max_msgs": 2, "discard": Discard.NEW}, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_a_lowered_limit_trims_at_once(limits: dict[str, object], kept: list[int]) -> None:
    driver = filled(6)
    driver.configure(**limits)
    assert driver.seqs() == kept


@pytest.mark.parametrize(
    ("purge", "purged", "kept", "first"),
    [
        ({}, 6, [], 7),
        ({"subject": ">"}, 6, [], 7),
        ({"subject": "s.a"}, 3, [2, 4, 6], 2),
        ({"subject": "s.*"}, 6, [], 7),
        ({"subject": "s.none"}, 0, [1, 2, 3, 4, 5, 6], 1),
        ({"keep": 2}, 4, [5, 6], 5),
        ({"keep": 9}, 0, [1, 2, 3, 4, 5, 6], 1),
        ({"subject": "s.a", "keep": 1}, 2, [2, 4, 5, 6], 2),
        ({"subject": "s.*", "keep": 3}, 3, [4, 5, 6], 4),
        ({"seq": 1}, 0, [1, 2, 3, 4, 5, 6], 1),
        ({"seq": 4}, 3, [4, 5, 6], 4),
        ({"seq": 7}, 6, [], 7),
        ({"seq": 20}, 6, [], 20),
        ({"subject": "s.a", "seq": 4}, 2, [2, 4, 5, 6], 2),
    ],
)
def test_purge(purge: dict[str, object], purged: int, kept: list[int], first: int) -> None:
    driver = filled(6)
    assert driver.purge(**purge) == purged  # type: ignore[arg-type]
    assert driver.seqs() == kept
    state = driver.stream.state()
    assert (state.first_seq, state.last_seq) == (first, max(first - 1, 6))


def test_purge_and_delete_are_refused_if_denied() -> None:
    driver = filled(2, deny_purge=True, deny_delete=True)
    assert refusal(driver.purge()) == (10110, "stream purge not permitted")
    assert refusal(driver.delete(1)) == (10057, "message delete not permitted")
    driver = filled(2)
    driver.configure(sealed=True)
    assert refusal(driver.purge())[0] == 10109
    assert refusal(driver.delete(1))[0] == 10109


@pytest.mark.parametrize("no_erase", [True, False])
def test_delete_message(no_erase: bool) -> None:
    driver = filled(4)
    assert driver.delete(2, no_erase=no_erase) is True
    assert driver.seqs() == [1, 3, 4]
    assert driver.stream.state().num_deleted == 1
    assert driver.delete(1, no_erase=no_erase) is True
    assert driver.stream.state().first_seq == 3
    assert driver.stream.state().num_deleted == 0
    assert driver.delete(4, no_erase=no_erase) is True
    assert driver.stream.state().last_seq == 4


def test_erased_bytes_are_gone_from_the_block() -> None:
    driver = filled(1)
    driver.publish(data="a secret that must not stay")
    driver.publish()
    driver.delete(2, no_erase=False)
    assert b"secret" not in b"".join(driver.stream.snapshot())
    batch = driver.db.begin()
    driver.stream.checkpoint(batch)
    driver.db.write(batch)
    assert not any(b"secret" in value for value in driver.db.values.values())


def test_delete_of_a_message_that_is_not_stored() -> None:
    driver = filled(4)
    driver.delete(3)
    driver.delete(1)
    assert refusal(driver.delete(3)) == (10043, "sequence 3 not found")
    assert refusal(driver.delete(1)) == (10057, "no message found")
    assert refusal(driver.delete(5)) == (10057, "stream store EOF")
    driver = filled(1, storage=Storage.MEMORY)
    assert refusal(driver.delete(9)) == (10043, "sequence 9 not found")


def test_state_of_a_stream_that_never_had_a_message() -> None:
    state = Driver().stream.state()
    assert (state.first_seq, state.last_seq, state.first_ts, state.last_ts) == (0, 0, 0, 0)


def test_first_seq_of_the_configuration() -> None:
    driver = Driver(first_seq=100)
    state = driver.stream.state()
    assert (state.first_seq, state.last_seq) == (100, 99)
    assert driver.publish() == 100


def test_subjects_details() -> None:
    state = filled(5).stream.state(subjects_filter=b"s.*")
    assert (state.num_subjects, state.subjects) == (2, {"s.a": 3, "s.b": 2})
    assert filled(5).stream.state(subjects_filter=b"s.none").subjects == {}


def test_mirror_keeps_sequences_times_and_gaps() -> None:
    driver = Driver(subjects=(), duplicate_window=0)
    assert driver.mirror([(5, 50, b"s.a", b"1"), (6, 60, b"s.b", b"2"), (9, 90, b"s.a", b"3")]) == 3
    assert driver.mirror([(9, 90, b"s.a", b"3"), (12, 95, b"s.a", b"4")]) == 1
    assert driver.mirror([(6, 60, b"s.b", b"2")]) == 0
    assert driver.seqs() == [5, 6, 9, 12]
    state = driver.stream.state(deleted_details=True)
    assert (state.first_seq, state.last_seq, state.deleted) == (5, 12, (7, 8, 10, 11))
    assert (state.first_ts, state.last_ts) == (50, 95)


def test_a_mirror_enforces_its_own_limits() -> None:
    driver = Driver(subjects=(), duplicate_window=0, max_msgs=2, max_msgs_per_subject=1)
    driver.mirror([(5, 50, b"a", b""), (8, 60, b"b", b""), (9, 70, b"a", b""), (20, 80, b"c", b"")])
    assert driver.seqs() == [9, 20]
