"""Interest and work queue retention: which messages are removed, and what consumers are told."""

from __future__ import annotations

import pytest

from broker.jetstream.config import AckPolicy, DeliverPolicy, Retention
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.errors import JetStreamError
from tests.support.stream_rig import Driver


def publish(driver: Driver, *subjects: str) -> None:
    for subject in subjects:
        driver.publish(subject)


def consumer_of(driver: Driver, name: str) -> Consumer:
    consumer = driver.stream.consumers[name]
    assert isinstance(consumer, Consumer)
    return consumer


def test_limits_streams_keep_acked_messages() -> None:
    driver = Driver()
    driver.consumer("c")
    publish(driver, "s.a", "s.b")
    driver.deliver("c", 1, 2)
    driver.ack("c", 1, 2)
    assert driver.seqs() == [1, 2]


def test_a_work_queue_removes_acked_messages() -> None:
    driver = Driver(retention=Retention.WORKQUEUE)
    publish(driver, "s.a", "s.b", "s.a")
    assert driver.consumer("a", "s.a") is None
    assert driver.consumer("b", "s.b") is None
    driver.deliver("a", 1, 3)
    driver.deliver("b", 2)
    driver.ack("a", 3)
    assert driver.seqs() == [1, 2]
    driver.ack("b", 2)
    driver.ack("a", 1)
    assert driver.seqs() == []
    driver.drop_consumer("a")
    publish(driver, "s.a")
    assert driver.seqs() == [4], "a work queue without consumers keeps its messages"


def test_work_queue_consumers_must_not_overlap() -> None:
    driver = Driver(retention=Retention.WORKQUEUE)
    assert driver.consumer("a", "s.a") is None
    for name, filters, err_code in (("all", (), 10099), ("wide", ("s.*",), 10100)):
        refused = driver.consumer(name, *filters)
        assert isinstance(refused, JetStreamError)
        assert int(refused.err_code) == err_code
    assert sorted(driver.stream.consumers) == ["a"]


def test_interest_waits_for_every_consumer_whose_filter_matches() -> None:
    driver = Driver(retention=Retention.INTEREST)
    driver.consumer("all")
    driver.consumer("b", "s.b")
    publish(driver, "s.a", "s.b")
    driver.deliver("all", 1, 2)
    driver.ack("all", 1, 2)
    assert driver.seqs() == [2]
    driver.deliver("b", 2)
    driver.ack("b", 2)
    assert driver.seqs() == []


def test_interest_of_a_consumer_without_acks_ends_with_delivery() -> None:
    driver = Driver(retention=Retention.INTEREST)
    driver.consumer("none", ack_policy=AckPolicy.NONE)
    publish(driver, "s.a", "s.b")
    driver.deliver("none", 1)
    assert driver.seqs() == [2]


def test_interest_ends_with_the_consumer() -> None:
    driver = Driver(retention=Retention.INTEREST)
    driver.consumer("a", "s.a")
    driver.consumer("b", "s.b")
    publish(driver, "s.a", "s.b", "s.a")
    driver.drop_consumer("a")
    assert driver.seqs() == [2]
    driver.drop_consumer("b")
    assert driver.seqs() == []
    assert driver.publish() == 4


def test_deleting_the_last_consumer_that_has_not_acked_removes_the_message() -> None:
    driver = Driver(retention=Retention.INTEREST)
    driver.consumer("fast")
    driver.consumer("slow")
    publish(driver, "s.a", "s.a")
    driver.deliver("fast", 1, 2)
    driver.ack("fast", 1)
    driver.drop_consumer("slow")
    assert driver.seqs() == [2]


def test_changing_a_filter_removes_messages_it_no_longer_matches() -> None:
    driver = Driver(retention=Retention.INTEREST)
    driver.consumer("c", "s.a", "s.b")
    publish(driver, "s.a", "s.b")
    assert driver.consumer("c", "s.b", "s.c") is None
    assert driver.seqs() == [2]


def test_switching_to_interest_removes_messages_that_all_have_acked() -> None:
    driver = Driver()
    driver.consumer("c")
    publish(driver, "s.a", "s.a", "s.a")
    driver.deliver("c", 1, 2)
    driver.ack("c", 1, 2)
    driver.configure(retention=Retention.INTEREST)
    assert driver.seqs() == [3]


def test_a_consumer_that_starts_later_does_not_keep_older_messages() -> None:
    driver = Driver(retention=Retention.INTEREST)
    driver.consumer("old")
    publish(driver, "s.a")
    driver.consumer("new", deliver_policy=DeliverPolicy.NEW)
    driver.deliver("old", 1)
    driver.ack("old", 1)
    assert driver.seqs() == []


@pytest.mark.parametrize("way", ["delete", "purge", "limit", "subject limit", "age"])
def test_pending_messages_that_are_removed_count_as_terminated(way: str) -> None:
    driver = Driver(max_age=1000)
    driver.consumer("c")
    publish(driver, "s.a", "s.a", "s.b")
    driver.deliver("c", 1, 2, 3)
    match way:
        case "delete":
            driver.delete(1)
            driver.delete(2, no_erase=False)
        case "purge":
            driver.purge("s.a")
        case "limit":
            driver.configure(max_msgs=1)
        case "subject limit":
            driver.configure(max_msgs_per_subject=1)
            driver.delete(2)
        case "age":
            driver.now += 1000
            driver.expire()
            driver.publish("s.b")
    left = 0 if way == "age" else 1
    assert len(consumer_of(driver, "c").state.pending) == left


def test_purge_moves_the_position_of_consumers() -> None:
    driver = Driver()
    driver.consumer("c")
    publish(driver, "s.a", "s.a", "s.a")
    driver.deliver("c", 1)
    driver.purge()
    consumer = consumer_of(driver, "c")
    assert (len(consumer.state.pending), consumer.state.stream_seq) == (0, 3)
    assert consumer.num_pending() == 0


def test_consumer_limit_and_actions() -> None:
    driver = Driver(max_consumers=1)
    assert driver.consumer("a") is None
    assert driver.consumer("a") is None, "the same again is no second one"
    refused = driver.consumer("b")
    assert isinstance(refused, JetStreamError)
    assert int(refused.err_code) == 10026
    assert driver.drop_consumer("a") is True
    missing = driver.drop_consumer("a")
    assert isinstance(missing, JetStreamError)
    assert int(missing.err_code) == 10014
