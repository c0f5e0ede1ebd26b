"""Counter streams: increments, sources, refusals as of nats-server. Spec: NATS ADR-49."""

from __future__ import annotations

from typing import Any

import pytest

from broker.jetstream.errors import JetStreamError
from broker.jetstream.publish.sessions import Duplicate, Stored
from broker.jetstream.stream.sourcing import source_prefix
from broker.store.block.codec import BlockBuilder
from broker.wire import headers as wire_headers
from tests.support.stream_rig import Driver, headers


def counting(**config: Any) -> Driver:
    return Driver(allow_msg_counter=True, **config)


def test_each_subject_has_its_own_value() -> None:
    driver = counting()
    values = [
        driver.publish(subject, "", Nats_Incr=text)
        for subject, text in (
            ("s.a", "1"), ("s.a", "+5"), ("s.b", "123456789012345678901234567890"),
            ("s.a", "-10"), ("s.a", "-0"),
        )
    ]  # fmt: skip
    assert values == [
        Stored(1, val="1"),
        Stored(2, val="6"),
        Stored(3, val="123456789012345678901234567890"),
        Stored(4, val="-4"),
        Stored(5, val="-4"),
    ]
    message = driver.stream.store.get(2)
    assert message is not None
    assert (message.headers, message.data) == (
        b"NATS/1.0\r\nNats-Incr: +5\r\n\r\n",
        b'{"val":"6"}',
    )


def test_a_value_continues_after_messages_were_removed() -> None:
    driver = counting(max_msgs_per_subject=1)
    for _ in range(5):
        driver.publish("s.a", "", Nats_Incr="2")
    assert driver.publish("s.a", "", Nats_Incr="2") == Stored(6, val="12")
    driver.purge("s.a")
    assert driver.publish("s.a", "", Nats_Incr="2") == Stored(7, val="2")


def test_a_repeated_id_adds_nothing() -> None:
    driver = counting()
    driver.publish("s.a", "", Nats_Incr="1", Nats_Msg_Id="m")
    assert driver.publish("s.a", "", Nats_Incr="1", Nats_Msg_Id="m") == Duplicate(1)
    assert driver.publish("s.a", "", Nats_Incr="1") == Stored(2, val="2")


REFUSED: list[tuple[int, str, dict[str, str], dict[str, Any]]] = [
    (10169, "", {}, {}),
    (10169, "", {"Nats_Incr": ""}, {}),
    (10171, "", {"Nats_Incr": "x"}, {}),
    (10171, "", {"Nats_Incr": "1.5"}, {}),
    (10171, "", {"Nats_Incr": "1_0"}, {}),
    (10171, "", {"Nats_Incr": "9" * 5000}, {}),
    (10170, "x", {"Nats_Incr": "1"}, {}),
    (10171, "", {"Nats_Incr": "1", "Nats_Rollup": "sub"}, {}),
    (10171, "", {"Nats_Incr": "1", "Nats_Expected_Stream": "S"}, {}),
    (10171, "", {"Nats_Incr": "1", "Nats_Expected_Last_Sequence": "0"}, {}),
    (10171, "", {"Nats_Incr": "1", "Nats_Expected_Last_Subject_Sequence": "0"}, {}),
    (10166, "", {"Nats_Incr": "1", "Nats_TTL": "5"}, {}),
    (10168, "", {"Nats_Incr": "1"}, {"allow_msg_counter": False}),
    (10171, "", {"Nats_Incr": "x"}, {"allow_msg_counter": False}),
    (10054, "", {"Nats_Incr": "1" * 30}, {"max_msg_size": 60}),
]


@pytest.mark.parametrize(("err_code", "data", "pairs", "config"), REFUSED)
def test_refused(err_code: int, data: str, pairs: dict[str, str], config: dict[str, Any]) -> None:
    driver = Driver(**({"allow_msg_counter": True} | config))
    refused = driver.publish("s.a", data, **pairs)
    assert isinstance(refused, JetStreamError)
    assert refused.err_code == err_code
    assert driver.stream.store.last_seq == 0


def test_a_last_message_without_a_value_breaks_the_counter() -> None:
    driver = Driver()
    driver.publish("s.a", "one")
    driver.configure(allow_msg_counter=True)
    refused = driver.publish("s.a", "", Nats_Incr="1")
    assert isinstance(refused, JetStreamError)
    assert refused.err_code == 10172


def test_sourced_counters_add_the_difference_to_the_last_seen_value() -> None:
    driver = counting()
    driver.publish("s.a", "", Nats_Incr="100")

    def take(origin: str, seq: int, value: str, after: int) -> None:
        made = BlockBuilder(seq)
        pairs = {"Nats-Incr": "1", "Nats-Stream-Source": f"{origin} {seq} > > o.a"}
        made.append(b"s.a", headers(pairs), b'{"val":"%b"}' % value.encode(), seq=seq)
        prefix = source_prefix(key=origin, after=after, time_ns=driver.now)
        driver.entry(prefix + made.build(seal=False))

    take("A", 5, "7", 0)
    take("B", 1, "1", 0)
    take("A", 9, "10", 5)  # the value grew by messages that were not sourced
    message = driver.stream.store.get(4)
    assert message is not None
    assert message.data == b'{"val":"111"}'
    assert wire_headers.get(message.headers, b"Nats-Incr") == b"3"
    known = wire_headers.get(message.headers, b"Nats-Counter-Sources")
    assert known == b'{"A":{"o.a":"10"},"B":{"o.a":"1"}}'
    assert driver.publish("s.a", "", Nats_Incr="1") == Stored(5, val="112")
    after = driver.stream.store.get(5)
    assert after is not None
    assert wire_headers.get(after.headers, b"Nats-Counter-Sources") == known


def test_values_that_are_too_large_are_refused() -> None:
    driver = counting()
    largest = "9" * 4096
    answers = [driver.publish("s.a", "", Nats_Incr=largest) for _ in range(3)]
    assert all(isinstance(answer, Stored) for answer in answers)
