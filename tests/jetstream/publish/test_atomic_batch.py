"""Atomic batches: all members are stored, or none; the answer to each. Spec: NATS ADR-50.

The error codes are those of nats-server in each case."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from broker.jetstream.config import Discard
from broker.jetstream.errors import JetStreamError
from broker.jetstream.publish import open_batches as batches
from broker.jetstream.publish.sessions import Staged, Stored
from broker.jetstream.stream.stream import Stream
from broker.store.memory_db import MemoryDb
from tests.support.stream_rig import SECOND, Driver

Member = tuple[str, dict[str, str]]
EXPECTED = "Nats-Expected-Last-Sequence"
EXPECTED_OF_SUBJECT = "Nats-Expected-Last-Subject-Sequence"


def batching(db: Any = None, **config: Any) -> Driver:
    return Driver(db, allow_atomic=True, **config)


def member(driver: Driver, batch: str, seq: object, commit: str = "", **more: Any) -> Any:
    pairs = {"Nats_Batch_Id": batch, "Nats_Batch_Sequence": str(seq)}
    if commit:
        pairs["Nats_Batch_Commit"] = commit
    subject, data = more.pop("subject", "s.a"), more.pop("data", "x")
    return driver.publish(subject, data, **pairs, **more)


def commit(driver: Driver, *members: Member, data: str = "x", batch: str = "b") -> Any:
    """The answer to the last member; the ones before it are staged."""
    for at, (subject, pairs) in enumerate(members, 1):
        last = at == len(members)
        named = {name.replace("-", "_"): value for name, value in pairs.items()}
        answer = member(driver, batch, at, "1" if last else "", subject=subject, data=data, **named)
        assert last or answer == Staged()
    return answer


def code(answer: object) -> tuple[int, str]:
    assert isinstance(answer, JetStreamError), answer
    return int(answer.err_code), answer.description


def test_members_are_staged_until_the_commit_and_then_stored_together() -> None:
    driver = batching()
    assert member(driver, "b", 1, subject="s.a") == Staged()
    assert member(driver, "b", 2, subject="s.b") == Staged()
    assert driver.publish("s.plain") == 1
    assert driver.stream.store.messages == 1
    assert member(driver, "b", 3, "1", subject="s.c") == Stored(4, batch="b", count=3)
    found = [driver.stream.store.get(seq) for seq in range(1, 5)]
    assert [message.subject for message in found if message] == [b"s.plain", b"s.a", b"s.b", b"s.c"]
    assert found[3] is not None
    assert found[3].headers == (
        b"NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: 3\r\nNats-Batch-Commit: 1\r\n\r\n"
    )


def test_an_end_of_batch_is_not_stored() -> None:
    driver = batching()
    member(driver, "b", 1)
    assert member(driver, "b", 2, "eob") == Stored(1, batch="b", count=1)
    message = driver.stream.store.get(1)
    assert message is not None
    assert message.headers.endswith(b"Nats-Batch-Sequence: 1\r\nNats-Batch-Commit: 1\r\n\r\n")


def test_rows_after_a_commit_are_acked_with_their_sequences() -> None:
    driver = batching()
    held = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"}
    last = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"}
    result = driver.batch([(b"s.a", pairs, b"") for pairs in ({}, held, {}, last, {}, {})])
    assert (result.first_seq, result.count) == (1, 2)
    assert result.exceptions == [
        (1, Staged()),
        (3, Stored(4, batch="b", count=2)),
        (4, Stored(5)),
        (5, Stored(6)),
    ]


@dataclass(frozen=True)
class Refused:
    """Members of a batch, the last of which is refused."""

    name: str
    err_code: int
    text: str
    members: tuple[Member, ...]
    config: dict[str, Any] = field(default_factory=dict)
    data: str = "x"


A: Member = ("s.a", {})
B: Member = ("s.b", {})
ROLLUPS = {"allow_rollup_hdrs": True}
REFUSED = [
    Refused("sequence", 10071, "wrong last sequence: 2", (("s.a", {EXPECTED: "1"}), B)),
    Refused("later sequence", 10164, "wrong last sequence", (A, ("s.b", {EXPECTED: "3"}))),
    Refused("later and wrong", 10071, "wrong last sequence: 3", (A, ("s.b", {EXPECTED: "2"}))),
    Refused("of subject", 10071, "wrong last sequence: 2",
            (A, ("s.b", {EXPECTED_OF_SUBJECT: "1"}))),
    Refused("of a written subject", 10164, "wrong last sequence",
            (A, ("s.a", {EXPECTED_OF_SUBJECT: "1"}))),
    Refused("subject without sequence", 10193,
            "missing sequence for expected last sequence per subject",
            (("s.a", {EXPECTED_OF_SUBJECT + "-Subject": "s.z"}), B)),
    Refused("message id", 10177, "atomic publish unsupported header used: "
            "Nats-Expected-Last-Msg-Id", (("s.a", {"Nats-Expected-Last-Msg-Id": "m"}), B)),
    Refused("known id", 10201, "atomic publish batch contains duplicate message id",
            (("s.a", {"Nats-Msg-Id": "known"}), B)),
    Refused("id twice", 10201, "atomic publish batch contains duplicate message id",
            (("s.a", {"Nats-Msg-Id": "m"}), ("s.b", {"Nats-Msg-Id": "m"}))),
    Refused("rollup", 10111, "rollup not permitted", (("s.a", {"Nats-Rollup": "sub"}), B)),
    Refused("late rollup of a subject", 10111, "batch rollup sub invalid",
            (A, ("s.a", {"Nats-Rollup": "sub"})), ROLLUPS),
    Refused("late rollup of all", 10111, "batch rollup all invalid",
            (A, ("s.b", {"Nats-Rollup": "all"})), ROLLUPS),
    Refused("ttl", 10166, "per-message TTL is disabled", (("s.a", {"Nats-TTL": "5"}), B)),
    Refused("bad ttl", 10165, "invalid per-message TTL", (("s.a", {"Nats-TTL": "x"}), B),
            {"allow_msg_ttl": True}),
    Refused("stream", 10060, "expected stream does not match",
            (("s.a", {"Nats-Expected-Stream": "T"}), B)),
    Refused("increment", 10168, "message counters is disabled", (("s.a", {"Nats-Incr": "1"}), B)),
    Refused("no increment", 10169, "message counter increment is missing",
            (("s.a", {"Nats-Incr": "1"}), ("s.a", {})), {"allow_msg_counter": True}, data=""),
    Refused("schedule", 10188, "message schedules is disabled",
            (("s.a", {"Nats-Schedule": "@daily"}), B)),
    Refused("source", 10227, "message stream source header is not allowed",
            (("s.a", {"Nats-Stream-Source": "x"}), B)),
    Refused("full", 10077, "maximum messages exceeded", (A, B),
            {"discard": Discard.NEW, "max_msgs": 3}),
    Refused("full of bytes", 10077, "maximum bytes exceeded", (A, B),
            {"discard": Discard.NEW, "max_bytes": 200}),
    Refused("full subject", 10077, "maximum messages per subject exceeded", (("s.c", {}),) * 2,
            {"discard": Discard.NEW, "max_msgs_per_subject": 1, "discard_new_per_subject": True}),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_one_refused_member_refuses_the_batch(case: Refused) -> None:
    driver = batching(**case.config)
    more = {"Nats_Incr": "1"} if "allow_msg_counter" in case.config else {}
    driver.publish("s.a", case.data, Nats_Msg_Id="known", **more)
    driver.publish("s.b", case.data, **more)
    err_code, text = code(commit(driver, *case.members, data=case.data))
    assert err_code == case.err_code
    assert text == case.text
    assert driver.stream.store.last_seq == 2
    assert len(driver.stream._publishes.atomic_batches) == 0


def test_members_that_are_refused_before_the_commit() -> None:
    driver = batching(max_msg_size=200)
    assert code(member(driver, "b", 2))[0] == 10176
    assert code(member(driver, "b", 1001)) == (10199, "atomic publish batch is too large: 1000")
    assert code(member(driver, "b", 1001, "eob"))[0] == 10176
    assert code(driver.publish(Nats_Batch_Id="b"))[0] == 10175
    assert code(member(driver, "b", "x"))[0] == 10175
    assert code(member(driver, "b" * 65, 1))[0] == 10179
    assert code(member(driver, "b", 1, "2"))[0] == 10200
    assert code(member(driver, "b", 1, "eob"))[0] == 10176
    assert code(member(driver, "b", 1, data="x" * 200))[0] == 10054
    assert code(member(driver, "b", 1, Nats_Required_Api_Level="99"))[0] == 10185
    assert len(driver.stream._publishes.atomic_batches) == 0
    driver.configure(allow_atomic=False)
    assert code(member(driver, "b", 1))[0] == 10174
    driver.configure(sealed=True)
    assert code(member(driver, "b", 1))[0] == 10109


def test_a_gap_ends_the_batch() -> None:
    driver = batching()
    member(driver, "b", 1)
    assert code(member(driver, "b", 3))[0] == 10176
    assert code(member(driver, "b", 2))[0] == 10176
    assert len(driver.stream._publishes.atomic_batches) == 0


def test_the_leader_collects_abandoned_batches() -> None:
    driver = batching()
    member(driver, "follower", 1)
    member(driver, "follower", 3)
    driver.stream.leader_effects.start()
    for batch, seq, pairs in (("a", 3, {}), ("b", 2, {"Nats_Required_Api_Level": "99"})):
        member(driver, batch, 1)
        member(driver, batch, seq, **pairs)
    member(driver, "c", 1)
    driver.now += 10 * SECOND
    driver.expire()
    member(driver, "d", 2)
    assert driver.stream.leader_effects.take_abandoned() == [
        (b"a", "incomplete"),
        (b"b", "unsupported"),
        (b"c", "timeout"),
    ]


def test_a_required_api_level_that_is_met_is_not_stored() -> None:
    driver = batching()
    assert member(driver, "b", 1, "1", Nats_Required_Api_Level="2") == Stored(1, batch="b", count=1)
    message = driver.stream.store.get(1)
    assert message is not None
    assert b"Required" not in message.headers


def test_members_and_open_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = batching()
    for number in range(50):
        assert member(driver, f"b{number}", 1) == Staged()
    assert code(member(driver, "b50", 1)) == (10210, "atomic publish too many inflight")
    for seq in range(2, 1001):
        member(driver, "b0", seq)
    assert code(member(driver, "b0", 1001))[0] == 10199
    assert member(driver, "b50", 1) == Staged()
    monkeypatch.setattr(batches, "STAGED_BYTES_MAX", 10)
    assert code(member(driver, "b50", 2))[0] == 10210


def test_a_thousand_members_fit() -> None:
    driver = batching()
    for seq in range(1, 1001):
        assert member(driver, "b", seq) == Staged()
    assert member(driver, "b", 1001, "eob") == Stored(1000, batch="b", count=1000)


def test_an_idle_batch_is_abandoned() -> None:
    driver = batching()
    member(driver, "b", 1)
    driver.now += 4 * SECOND
    member(driver, "b", 2)
    assert driver.stream.next_expiry(0) == driver.now + 10 * SECOND
    driver.now += 10 * SECOND - 1
    driver.expire()
    assert len(driver.stream._publishes.atomic_batches) == 1
    driver.now += 1
    driver.expire()
    assert driver.stream.next_expiry(0) is None
    assert code(member(driver, "b", 3, "1"))[0] == 10176


def test_counters_add_up_within_a_batch() -> None:
    driver = batching(allow_msg_counter=True)
    two, three = {"Nats-Incr": "2"}, {"Nats-Incr": "3"}
    committed = commit(driver, ("s.a", two), ("s.b", two), ("s.a", three), data="")
    assert committed == Stored(3, batch="b", count=3)
    assert driver.publish("s.a", "", Nats_Incr="1") == Stored(4, val="6")


def test_open_batches_survive_checkpoints_and_snapshots() -> None:
    db = MemoryDb()
    driver = batching(db)
    member(driver, "b", 1, data="one")
    member(driver, "gone", 1)
    batch = db.begin()
    driver.stream.checkpoint(batch)
    db.write(batch)
    member(driver, "gone", 2, "1")
    member(driver, "b", 2, data="two")
    batch = db.begin()
    driver.stream.checkpoint(batch)
    db.write(batch)
    reopened = driver.open()
    assert reopened.digest() == driver.stream.digest()
    other = Stream.open(driver.config, created_ns=1, files=MemoryDb().files(3))
    other.restore(list(driver.stream.snapshot()))
    assert other.digest() == driver.stream.digest()
    for stream in (reopened, other):
        driver.stream = stream
        assert member(driver, "b", 3, "1") == Stored(5, batch="b", count=3)
        message = stream.store.get(4)
        assert message is not None
        assert message.data == b"two"
