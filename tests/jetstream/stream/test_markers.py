"""Delete markers: left on a subject when its last message expires. Spec: NATS ADR-43."""

from __future__ import annotations

from typing import Any

import pytest

from broker.jetstream.config import Retention
from tests.support.stream_rig import SECOND, Driver

MARKER = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: %b\r\nNats-Rollup: sub\r\n\r\n"


def marking(**config: Any) -> Driver:
    config.setdefault("subject_delete_marker_ttl", 90 * SECOND)
    return Driver(allow_msg_ttl=True, allow_rollup_hdrs=True, **config)


def expire_after(driver: Driver, seconds: int) -> Any:
    driver.now += seconds * SECOND
    return driver.expire()


def stored(driver: Driver) -> list[tuple[int, bytes, bytes]]:
    found = [driver.stream.store.get(seq) for seq in driver.seqs()]
    return [(m.seq, m.subject, m.headers) for m in found if m is not None]


def test_the_last_message_of_a_subject_leaves_a_marker_when_it_expires() -> None:
    driver = marking(max_age=10 * SECOND)
    driver.publish("s.a")
    driver.publish("s.a")
    driver.publish("s.b")
    assert expire_after(driver, 10) == 3
    assert stored(driver) == [(4, b"s.a", MARKER % b"1m30s"), (5, b"s.b", MARKER % b"1m30s")]


def test_a_message_with_newer_ones_on_its_subject_leaves_no_marker() -> None:
    driver = marking()
    driver.publish("s.a", Nats_TTL="90")
    driver.publish("s.a")
    assert expire_after(driver, 90) == 1
    assert [seq for seq, _, _ in stored(driver)] == [2]


def test_an_expiring_marker_leaves_no_marker() -> None:
    driver = marking(subject_delete_marker_ttl=5 * SECOND)
    driver.publish("s.a", Nats_TTL="5")
    assert expire_after(driver, 5) == 1
    assert driver.stream.next_expiry(0) == driver.now + 5 * SECOND
    assert expire_after(driver, 5) == 1
    assert stored(driver) == []
    assert driver.stream.store.last_seq == 2


@pytest.mark.parametrize("pairs", [{"KV_Operation": "PURGE"}, {"Nats_Marker_Reason": "Remove"}])
def test_a_message_that_is_a_marker_leaves_no_marker(pairs: dict[str, str]) -> None:
    driver = marking(max_age=5 * SECOND)
    driver.publish("s.a", **pairs)
    assert expire_after(driver, 5) == 1
    assert stored(driver) == []


def test_deleted_and_purged_messages_leave_no_marker() -> None:
    driver = marking()
    driver.publish("s.a")
    driver.delete(1)
    driver.publish("s.b")
    driver.purge()
    assert stored(driver) == []


def test_a_shorter_ttl_is_raised_to_the_marker_ttl() -> None:
    driver = marking()
    driver.publish("s.a", Nats_TTL="1")
    driver.publish("s.b", Nats_TTL="never")
    driver.publish("s.c", Nats_TTL="2h")
    shown = [raw for _, _, raw in stored(driver)]
    assert shown == [
        b"NATS/1.0\r\nNats-TTL: 90\r\n\r\n",
        b"NATS/1.0\r\nNats-TTL: never\r\n\r\n",
        b"NATS/1.0\r\nNats-TTL: 2h\r\n\r\n",
    ]
    assert driver.stream.next_expiry(0) == driver.now + 90 * SECOND


def test_with_one_message_per_subject_a_ttl_is_not_raised() -> None:
    driver = marking(max_msgs_per_subject=1)
    driver.publish("s.a", Nats_TTL="1")
    assert stored(driver)[0][2] == b"NATS/1.0\r\nNats-TTL: 1\r\n\r\n"
    assert expire_after(driver, 1) == 1
    assert stored(driver) == [(2, b"s.a", MARKER % b"1m30s")]


def test_an_interest_stream_without_consumers_stores_no_marker() -> None:
    driver = marking(retention=Retention.INTEREST, max_age=5 * SECOND)
    driver.consumer("c", "s.a")
    driver.publish("s.a")
    driver.drop_consumer("c")
    assert expire_after(driver, 5) == 0
    assert stored(driver) == []
