"""Every check of a publish, with the code and text of its error."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from broker.jetstream.config import Discard, Retention, Storage
from broker.jetstream.errors import JetStreamError
from broker.jetstream.incoming_message import TTL_NEVER, _named, parse_ttl
from broker.jetstream.publish.sessions import Duplicate, PublishResult
from broker.wire import headers as wire_headers
from tests.support.stream_rig import SECOND, Driver


@dataclass(frozen=True)
class Case:
    """`before`: publishes (subject, headers) that succeed; the next one is refused."""

    name: str
    err_code: int
    text: str
    headers: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    before: tuple[tuple[str, dict[str, str]], ...] = ()
    subject: str = "s.a"
    data: str = "x"


A: tuple[str, dict[str, str]] = ("s.a", {})
B: tuple[str, dict[str, str]] = ("s.b", {})
KV: dict[str, Any] = {"discard": Discard.NEW, "max_msgs_per_subject": 1}

REFUSED = [
    Case("expected stream", 10060, "expected stream does not match",
         {"Nats-Expected-Stream": "T"}),
    Case("ttl disabled", 10166, "per-message TTL is disabled", {"Nats-TTL": "5"}),
    Case("ttl nonsense, and disabled", 10165, "invalid per-message TTL", {"Nats-TTL": "soon"}),
    Case("ttl zero", 10165, "invalid per-message TTL", {"Nats-TTL": "0"}, {"allow_msg_ttl": True}),
    Case("ttl below a second", 10165, "invalid per-message TTL", {"Nats-TTL": "10ms"},
         {"allow_msg_ttl": True}),
    Case("ttl nonsense", 10165, "invalid per-message TTL", {"Nats-TTL": "soon"},
         {"allow_msg_ttl": True}),
    Case("last sequence", 10071, "wrong last sequence: 2",
         {"Nats-Expected-Last-Sequence": "1"}, before=(A, A)),
    Case("last sequence of a fresh stream", 10071, "wrong last sequence: 0",
         {"Nats-Expected-Last-Sequence": "1"}),
    Case("last sequence that is no number", 10071, "wrong last sequence: 1",
         {"Nats-Expected-Last-Sequence": "one"}, before=(A,)),
    Case("last sequence below zero", 10071, "wrong last sequence: 0",
         {"Nats-Expected-Last-Sequence": "-0"}),
    Case("last subject sequence", 10071, "wrong last sequence: 1",
         {"Nats-Expected-Last-Subject-Sequence": "2"}, before=(A, B)),
    Case("last subject sequence of a new subject", 10071, "wrong last sequence: 0",
         {"Nats-Expected-Last-Subject-Sequence": "2"}, before=(B, B)),
    Case("last sequence of another subject", 10071, "wrong last sequence: 2",
         {"Nats-Expected-Last-Subject-Sequence": "1",
          "Nats-Expected-Last-Subject-Sequence-Subject": "s.b"}, before=(A, B)),
    Case("last sequence of a pattern", 10071, "wrong last sequence: 2",
         {"Nats-Expected-Last-Subject-Sequence": "1",
          "Nats-Expected-Last-Subject-Sequence-Subject": "s.*"}, before=(A, B)),
    Case("pattern without a sequence", 10193,
         "missing sequence for expected last sequence per subject",
         {"Nats-Expected-Last-Subject-Sequence-Subject": "s.*"}),
    Case("last message id", 10070, "wrong last msg ID: m1",
         {"Nats-Expected-Last-Msg-Id": "m0"}, before=(("s.a", {"Nats-Msg-Id": "m1"}),)),
    Case("last message had no id", 10070, "wrong last msg ID: ",
         {"Nats-Expected-Last-Msg-Id": "m1"}, before=(("s.a", {"Nats-Msg-Id": "m1"}), A)),
    Case("rollup not allowed", 10111, "rollup not permitted", {"Nats-Rollup": "sub"}),
    Case("rollup where purging is denied", 10111, "rollup not permitted", {"Nats-Rollup": "sub"},
         {"allow_rollup_hdrs": True, "deny_purge": True}),
    Case("rollup value", 10111, 'rollup value invalid: "some"', {"Nats-Rollup": "Some"},
         {"allow_rollup_hdrs": True}),
    Case("too large", 10054, "message size exceeds maximum allowed",
         config={"max_msg_size": 4}, data="12345"),
    Case("too large with its headers", 10054, "message size exceeds maximum allowed",
         {"k": "v"}, {"max_msg_size": 4}),
    Case("headers too large", 10097, "header size exceeds maximum allowed of 64k",
         {"k": "v" * 65536}),
    Case("record too large", 10077, "message too large", data="x" * ((32 << 20) + 1)),
    Case("sealed", 10109, "invalid operation on sealed stream", config={"sealed": True}),
    Case("counter", 10168, "message counters is disabled", {"Nats-Incr": "1"}),
    Case("schedule", 10188, "message schedules is disabled", {"Nats-Schedule": "@every 1s"}),
    Case("atomic batch", 10174, "atomic publish is disabled",
         {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"}),
    Case("pretends to be sourced", 10227, "message stream source header is not allowed",
         {"Nats-Stream-Source": "T 1 > > s.a"}),
    Case("full by count", 10077, "maximum messages exceeded",
         config={"discard": Discard.NEW, "max_msgs": 2}, before=(A, B)),
    Case("full by bytes", 10077, "maximum bytes exceeded",
         config={"discard": Discard.NEW, "max_bytes": 70}, before=(A, B)),
    Case("full by count for a new key", 10077, "maximum messages exceeded",
         config=KV | {"max_msgs": 2}, before=(A, B), subject="s.c"),
    Case("full by bytes for a larger value", 10077, "maximum bytes exceeded",
         config=KV | {"max_bytes": 70}, before=(A, B), data="xy"),
    Case("full per subject", 10077, "maximum messages per subject exceeded",
         config=KV | {"discard_new_per_subject": True}, before=(A,)),
    # order of checks: several fail, the first in this table is reported
    Case("sealed before expected stream", 10109, "invalid operation on sealed stream",
         {"Nats-Expected-Stream": "T"}, {"sealed": True}),
    Case("stream before ttl", 10060, "expected stream does not match",
         {"Nats-Expected-Stream": "T", "Nats-TTL": "1"}),
    Case("ttl before sequences", 10166, "per-message TTL is disabled",
         {"Nats-Expected-Last-Sequence": "7", "Nats-TTL": "1"}),
    Case("subject sequence before sequence", 10071, "wrong last sequence: 1",
         {"Nats-Expected-Last-Sequence": "7", "Nats-Expected-Last-Subject-Sequence": "7"},
         before=(A, B)),
    Case("stale sequence before duplicate", 10071, "wrong last sequence: 1",
         {"Nats-Msg-Id": "m1", "Nats-Expected-Last-Sequence": "0"},
         before=(("s.a", {"Nats-Msg-Id": "m1"}),)),
    Case("message id before rollup", 10070, "wrong last msg ID: ",
         {"Nats-Expected-Last-Msg-Id": "m", "Nats-Rollup": "bad"}),
    Case("rollup before size", 10111, "rollup not permitted",
         {"Nats-Rollup": "sub"}, {"max_msg_size": 1}),
    Case("size before a bad ttl", 10054, "message size exceeds maximum allowed",
         {"Nats-TTL": "bad"}, {"allow_msg_ttl": True, "max_msg_size": 1}),
    Case("bad ttl before a full stream", 10165, "invalid per-message TTL",
         {"Nats-TTL": "bad"}, {"allow_msg_ttl": True, "discard": Discard.NEW, "max_msgs": 1},
         before=(A,)),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_publish_is_refused(case: Case) -> None:
    driver = Driver(**case.config)
    for subject, pairs in case.before:
        assert isinstance(driver.publish(subject, **pairs), int)
    before = driver.stream.store.last_seq, driver.stream.store.messages
    refused = driver.publish(case.subject, case.data, **case.headers)
    assert isinstance(refused, JetStreamError)
    assert (int(refused.err_code), refused.description) == (case.err_code, case.text)
    assert (driver.stream.store.last_seq, driver.stream.store.messages) == before


ACCEPTED = [
    Case("expected stream", 0, "", {"Nats-Expected-Stream": "S"}),
    Case("expected last sequence", 0, "", {"Nats-Expected-Last-Sequence": "2"}, before=(A, B)),
    Case("nothing ever stored", 0, "", {"Nats-Expected-Last-Sequence": "0"}),
    Case("subject sequence", 0, "", {"Nats-Expected-Last-Subject-Sequence": "1"}, before=(A, B)),
    Case("subject without messages", 0, "", {"Nats-Expected-Last-Subject-Sequence": "0"},
         before=(B,)),
    Case("pattern", 0, "", {"Nats-Expected-Last-Subject-Sequence": "2",
                            "Nats-Expected-Last-Subject-Sequence-Subject": "s.*"}, before=(A, B)),
    Case("last message id", 0, "", {"Nats-Expected-Last-Msg-Id": "m"},
         before=(("s.a", {"Nats-Msg-Id": "m"}),)),
    Case("ttl", 0, "", {"Nats-TTL": "1h30m"}, {"allow_msg_ttl": True}),
    Case("exactly as large as allowed", 0, "", config={"max_msg_size": 5}, data="12345"),
    Case("unknown server header", 0, "", {"Nats-Something": "else"}),
    Case("other case is another header", 0, "", {"nats-expected-stream": "T"}),
    Case("key replaced in a full bucket", 0, "", config=KV | {"max_msgs": 2}, before=(A, B)),
    Case("key replaced by a smaller value", 0, "", config=KV | {"max_bytes": 70}, before=(A, B),
         data=""),
    Case("rollup passes the limit per subject", 0, "", {"Nats-Rollup": "sub"},
         KV | {"discard_new_per_subject": True, "allow_rollup_hdrs": True}, before=(A,)),
]  # fmt: skip


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.name)
def test_publish_is_accepted(case: Case) -> None:
    driver = Driver(**case.config)
    for subject, pairs in case.before:
        driver.publish(subject, **pairs)
    assert driver.publish(case.subject, case.data, **case.headers) == len(case.before) + 1


def test_a_duplicate_is_acked_with_the_first_sequence_even_after_a_purge() -> None:
    driver = Driver()
    assert driver.publish(Nats_Msg_Id="m") == 1
    assert driver.publish("s.b") == 2
    assert driver.purge() == 2
    assert driver.publish("s.other", Nats_Msg_Id="m") == Duplicate(1)
    driver.now += 120 * SECOND - 1
    assert driver.publish(Nats_Msg_Id="m") == Duplicate(1)
    driver.now += 1
    assert driver.publish(Nats_Msg_Id="m") == 3


def test_streams_without_a_duplicate_window_accept_duplicates() -> None:
    driver = Driver(duplicate_window=0)
    assert [driver.publish(Nats_Msg_Id="m") for _ in range(2)] == [1, 2]


def test_a_changed_duplicate_window_takes_effect_at_once() -> None:
    driver = Driver()
    driver.publish(Nats_Msg_Id="m")
    driver.configure(duplicate_window=SECOND)
    driver.now += SECOND
    assert driver.publish(Nats_Msg_Id="m") == 2


def test_expectations_after_purge() -> None:
    driver = Driver()
    driver.publish()
    driver.purge()
    zero = "0"
    refused = driver.publish(Nats_Expected_Last_Sequence=zero)
    assert refused.description == "wrong last sequence: 1"
    assert driver.publish(Nats_Expected_Last_Subject_Sequence=zero) == 2


def test_rollup_of_a_subject_and_of_all() -> None:
    driver = Driver(allow_rollup_hdrs=True)
    for subject in ("s.a", "s.b", "s.a"):
        driver.publish(subject)
    assert driver.publish("s.a", Nats_Rollup="SUB") == 4
    assert driver.seqs() == [2, 4]
    assert driver.publish("s.c", Nats_Rollup="all") == 5
    assert driver.seqs() == [5]


def test_in_a_mixed_batch_stored_rows_get_consecutive_sequences() -> None:
    driver = Driver(max_msg_size=60)
    rows = [
        (b"s.a", {}, b"1"),
        (b"s.a", {"Nats-Expected-Stream": "T"}, b"2"),
        (b"s.b", {"Nats-Msg-Id": "m"}, b"3"),
        (b"s.b", {"Nats-Msg-Id": "m"}, b"4"),
        (b"s.c", {}, b"x" * 61),
        (b"s.c", {}, b"6"),
    ]
    result = driver.batch(rows)
    assert isinstance(result, PublishResult)
    assert (result.first_seq, result.count) == (1, 3)
    assert [row for row, _ in result.exceptions] == [1, 3, 4]
    assert result.exceptions[1][1] == Duplicate(2)
    stored = [driver.stream.store.get(seq) for seq in driver.seqs()]
    assert [message.data for message in stored if message is not None] == [b"1", b"3", b"6"]


def test_discard_new_stores_a_batch_up_to_the_limit() -> None:
    driver = Driver(discard=Discard.NEW, max_msgs=3)
    result = driver.batch([(b"s.a", {}, b"x")] * 5)
    assert (result.first_seq, result.count) == (1, 3)
    assert [int(error.err_code) for _, error in result.exceptions] == [10077, 10077]


def test_interest_without_consumers_is_acked_and_not_stored() -> None:
    driver = Driver(retention=Retention.INTEREST)
    assert [driver.publish(), driver.publish(Nats_Msg_Id="m")] == [1, 2]
    assert driver.publish(Nats_Msg_Id="m") == Duplicate(2)
    state = driver.stream.state()
    assert (state.messages, state.first_seq, state.last_seq) == (0, 3, 2)


def test_interest_keeps_messages_that_match_a_filter() -> None:
    driver = Driver(retention=Retention.INTEREST)
    driver.consumer("c", "s.a")
    result = driver.batch([(b"s.b", {}, b""), (b"s.a", {}, b""), (b"s.b", {}, b"")])
    assert (result.first_seq, result.count, result.exceptions) == (1, 3, [])
    assert driver.seqs() == [2]
    state = driver.stream.state(deleted_details=True)
    assert (state.first_seq, state.last_seq, state.deleted) == (2, 3, (3,))


def test_sizes_follow_the_storage_type() -> None:
    for storage, expected in ((Storage.FILE, 30 + 3 + 5 + 4 + 18), (Storage.MEMORY, 16 + 26)):
        driver = Driver(storage=storage)
        driver.batch([(b"s.a", {"k": "v"}, b"hello")])  # 18 bytes of headers
        assert driver.stream.state().bytes == expected


def test_times_of_a_stream_do_not_go_back() -> None:
    driver = Driver()
    driver.publish()
    stamped = driver.now
    driver.now -= SECOND
    driver.publish()
    second = driver.stream.store.get(2)
    assert second is not None
    assert second.time_ns == stamped


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1", 1), (b"3600", 3600), (b"1h", 3600), (b"1m30s", 90), (b"1.5h", 5400), (b"1500ms", 1),
        (b"never", TTL_NEVER), (b"NEVER", TTL_NEVER), (b"", None), (b"0", None), (b"-1", None),
        (b"999ms", None), (b"1x", None), (b"s", None), (b"1h ", None), (b"99999999999999999", None),
    ],
)  # fmt: skip
def test_ttl_values(value: bytes, seconds: int | None) -> None:
    assert parse_ttl(value) == seconds


def test_headers_are_found_as_a_line_by_line_search_finds_them() -> None:
    """The quick search is for blocks in which every CR and LF ends a line."""
    parts = (b"Nats-A: 1", b"Nats-A: 2", b"nats-a: 3", b"Nats-B:", b"Nats-C", b"X: Nats-D: 4",
             b"Nats-E:  a:b ", b"", b"Nats-F\n: 5", b"Nats-G: 6\rNats-H: 7", b": 8")  # fmt: skip
    dice = random.Random(1)
    for _ in range(2000):
        lines = dice.choices(parts, k=dice.randint(0, 6))
        raw = b"\r\n".join([b"NATS/1.0", *lines, b"", b""])
        expected: dict[bytes, bytes] = {}
        for name, value in wire_headers.parse(raw):
            if name.startswith(b"Nats-"):
                expected.setdefault(name, value)
        assert _named(raw) == expected, raw
