"""Per-message TTL: each message expires at its own time. Spec: NATS ADR-43."""

from __future__ import annotations

from typing import Any

import pytest

from broker.jetstream.commands.publish_entry import mirror_prefix
from broker.jetstream.commands.stream_commands import Expire
from broker.jetstream.error_codes import ErrCode
from broker.jetstream.errors import JetStreamError
from broker.store.block.codec import BlockBuilder
from broker.store.deadlines import LOOKED_AT, Deadlines
from broker.store.memory_db import MemoryDb
from tests.support.stream_rig import SECOND, Driver, headers


def ttl_driver(db: Any = None, **config: Any) -> Driver:
    return Driver(db, allow_msg_ttl=True, **config)


def expire_at(driver: Driver, seconds: float) -> Any:
    """Apply Expire at this many seconds after the driver's time."""
    return driver.run(Expire(driver.now + int(seconds * SECOND)))


def test_each_message_expires_at_its_own_ttl() -> None:
    driver = ttl_driver()
    for ttl in ("3", "1", "2s"):
        driver.publish(Nats_TTL=ttl)
    driver.publish()
    assert driver.stream.next_expiry(0) == driver.now + SECOND
    assert expire_at(driver, 0.9) == 0
    assert expire_at(driver, 1) == 1
    assert driver.seqs() == [1, 3, 4]
    assert expire_at(driver, 60) == 2
    assert driver.seqs() == [4]
    assert driver.stream.next_expiry(0) is None


def test_a_ttl_longer_than_max_age_has_no_effect() -> None:
    driver = ttl_driver(max_age=10 * SECOND)
    driver.publish(Nats_TTL="1h")
    assert driver.stream.next_expiry(0) == driver.now + 10 * SECOND
    assert expire_at(driver, 10) == 1


def test_never_protects_from_max_age_at_any_position() -> None:
    driver = ttl_driver(max_age=10 * SECOND)
    for ttl in ("never", "", "never", ""):
        driver.publish(**({"Nats_TTL": ttl} if ttl else {}))
    assert expire_at(driver, 10) == 2
    assert driver.seqs() == [1, 3]
    assert driver.stream.next_expiry(0) is None
    driver.now += 20 * SECOND
    driver.publish()
    assert driver.stream.next_expiry(0) == driver.now + 10 * SECOND
    assert expire_at(driver, 10) == 1
    assert driver.seqs() == [1, 3]


def test_a_removed_message_needs_no_expiry() -> None:
    driver = ttl_driver()
    driver.publish(Nats_TTL="1")
    driver.publish(Nats_TTL="5")
    driver.delete(1)
    assert driver.stream.next_expiry(0) == driver.now + 5 * SECOND
    driver.purge()
    assert driver.stream.next_expiry(0) is None
    assert expire_at(driver, 9) == 0


@pytest.mark.parametrize("way", ["restart", "snapshot"])
def test_deadlines_survive(way: str) -> None:
    db = MemoryDb()
    driver = ttl_driver(db, max_age=10 * SECOND)
    for ttl in ("2", "never", "1"):
        driver.publish(Nats_TTL=ttl)
    if way == "restart":
        batch = db.begin()
        driver.stream.checkpoint(batch)
        db.write(batch)
        driver.stream = driver.open()
    else:
        chunks = list(driver.stream.snapshot())
        driver = ttl_driver(max_age=10 * SECOND)
        driver.stream.restore(chunks)
    assert driver.stream.next_expiry(0) == driver.now + SECOND
    assert expire_at(driver, 1) == 1
    assert expire_at(driver, 60) == 1
    assert driver.seqs() == [2]


def test_replicas_agree_whatever_stale_deadlines_they_hold() -> None:
    """One replica has dropped its stale deadlines, the other has not."""
    drivers = [ttl_driver(max_age=10 * SECOND) for _ in range(2)]
    for driver in drivers:
        driver.consumer("C")
        for ttl in ("never", "never", "", "", "never"):
            driver.publish(**({"Nats_TTL": ttl} if ttl else {}))
        driver.delete(1)
        driver.delete(3)
        driver.delete(5)
    known = drivers[0].stream.store
    known.deadlines.prune(-9999, known.has)
    assert [len(driver.stream.store.deadlines) for driver in drivers] == [1, 3]
    for driver in drivers:
        assert expire_at(driver, 10) == 1
    assert drivers[0].stream.digest() == drivers[1].stream.digest()


def test_a_mirror_applies_ttls_if_allowed() -> None:
    for allowed in (True, False):
        driver = Driver(allow_msg_ttl=allowed)
        builder = BlockBuilder()
        for seq in (5, 7):
            named = headers({"Nats-TTL": "1"})
            builder.append(b"s.a", named, b"x", time_ns=driver.now, seq=seq)
        entry = mirror_prefix(time_ns=driver.now) + builder.build(seal=False)
        driver.entry(entry)
        driver.entry(entry)  # again: nothing is new
        assert expire_at(driver, 1) == (2 if allowed else 0)


def test_stale_deadlines_are_bounded() -> None:
    driver = ttl_driver(max_msgs_per_subject=1)
    for _ in range(3000):
        driver.publish(Nats_TTL="1h")
    driver.stream.checkpoint(driver.db.begin())
    assert len(driver.stream.store.deadlines) == 1


MANY_NINES = "9" * 5000  # more digits than int() accepts


@pytest.mark.parametrize("ttl", [MANY_NINES, MANY_NINES + "s", MANY_NINES + "ns", "2562048h"])
def test_a_ttl_that_overflows_is_refused(ttl: str) -> None:
    driver = ttl_driver()
    refused = driver.publish(Nats_TTL=ttl)
    assert isinstance(refused, JetStreamError)
    assert refused.err_code is ErrCode.MESSAGE_TTL_INVALID
    driver.publish(Nats_TTL="1." + MANY_NINES + "s")
    assert driver.seqs() == [1]


def test_the_longest_ttl_survives_a_restart() -> None:
    db = MemoryDb()
    driver = ttl_driver(db)
    driver.publish(Nats_TTL="9223372036")
    batch = db.begin()
    driver.stream.checkpoint(batch)
    db.write(batch)
    driver.stream = driver.open()
    assert driver.seqs() == [1]


def test_deadlines_of_removed_messages_are_dropped_some_at_a_time() -> None:
    deadlines = Deadlines()
    for seq in range(1, 3001):
        deadlines.set(seq, 1000 + seq)
    looked = 0

    def gone(_: int) -> bool:
        nonlocal looked
        looked += 1
        return False

    assert deadlines.next_due(gone) == 1000 + LOOKED_AT + 1  # of one that is not known to be gone
    assert looked == LOOKED_AT
    while deadlines.next_due(gone) is not None:
        pass
    assert (looked, len(deadlines)) == (3000, 0)
