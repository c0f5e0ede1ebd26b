"""Publish sessions: batches are applied once, in order; a repeated one gets the same result."""

from __future__ import annotations

from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.publish import sessions
from broker.jetstream.publish.sessions import (
    Duplicate,
    FastBatchReply,
    OutOfOrder,
    PublishResult,
    Sessions,
)
from tests.support.stream_rig import Driver

ROW = (b"s.a", {}, b"x")


def send(driver: Driver, batch_no: int, *, session: int = 5, from_node: int = 7) -> object:
    return driver.batch([ROW, ROW], from_node=from_node, session=session, batch_no=batch_no)


def test_a_repeated_batch_gets_its_result_and_is_not_stored() -> None:
    driver = Driver()
    first, second = send(driver, 1), send(driver, 2)
    assert first == PublishResult(7, 5, 1, 1, 2, [])
    assert send(driver, 1) == first
    assert send(driver, 2) == second
    assert driver.stream.store.messages == 4


def test_batches_must_come_in_order() -> None:
    driver = Driver()
    assert send(driver, 2) == OutOfOrder(7, 5, 2, 1)
    send(driver, 1)
    assert send(driver, 3) == OutOfOrder(7, 5, 3, 2)
    assert driver.stream.store.messages == 2


def test_a_new_session_ends_the_older_one() -> None:
    driver = Driver()
    send(driver, 1)
    assert send(driver, 2, session=6) == OutOfOrder(7, 6, 2, 1)
    assert isinstance(send(driver, 1, session=6), PublishResult)
    assert send(driver, 2, session=5) == OutOfOrder(7, 5, 2, 0)
    assert isinstance(send(driver, 2, session=6), PublishResult)


def test_nodes_are_independent_and_node_zero_has_no_session() -> None:
    driver = Driver()
    assert isinstance(send(driver, 1, from_node=8), PublishResult)
    assert isinstance(send(driver, 1, from_node=9), PublishResult)
    for _ in range(2):
        assert isinstance(send(driver, 3, from_node=0), PublishResult)
    assert driver.stream.store.messages == 8


def test_only_recent_results_are_remembered() -> None:
    driver = Driver()
    for number in range(1, sessions.RESULTS_KEPT + 2):
        send(driver, number)
    assert send(driver, 1) == OutOfOrder(7, 5, 1, sessions.RESULTS_KEPT + 2)
    assert isinstance(send(driver, 2), PublishResult)


def test_sessions_with_their_errors_survive_a_restart() -> None:
    driver = Driver()
    rows = [ROW, (b"s.a", {"Nats-Msg-Id": "m"}, b""), (b"s.a", {"Nats-Msg-Id": "m"}, b""),
            (b"s.a", {"Nats-Expected-Stream": "T"}, b"")]  # fmt: skip
    before = driver.batch(rows, from_node=7, session=5, batch_no=1)
    batch = driver.db.begin()
    driver.stream.checkpoint(batch)
    driver.db.write(batch)
    driver.stream = driver.open()
    after = send(driver, 1)
    assert isinstance(after, PublishResult)
    assert (after.first_seq, after.count) == (before.first_seq, before.count) == (1, 2)
    assert after.exceptions[0] == (2, Duplicate(2))
    refused, refused_before = after.exceptions[1][1], before.exceptions[1][1]
    assert isinstance(refused, JetStreamError)
    assert isinstance(refused_before, JetStreamError)
    assert refused.body() == refused_before.body()


def test_answers_that_say_the_same_are_one_object() -> None:
    """A session remembers thousands of refusals: 400 MB in forty streams."""
    remembered = Sessions()

    def results() -> list[PublishResult]:
        return [
            PublishResult(
                from_node=1,
                session=1,
                batch_no=number,
                first_seq=0,
                count=0,
                exceptions=[
                    (0, JetStreamError(ErrCode.INSUFFICIENT_RESOURCES)),
                    (1, FastBatchReply("too many")),
                    (2, Duplicate(number)),
                    (3, JetStreamError(ErrCode.INSUFFICIENT_RESOURCES, "because")),
                ],
            )
            for number in (1, 2)
        ]

    def answered(known: Sessions, number: int) -> list[object]:
        result = known.admit(from_node=1, session=1, batch_no=number)
        assert isinstance(result, PublishResult)
        return [what for _, what in result.exceptions]

    for result in results():
        assert remembered.admit(from_node=1, session=1, batch_no=result.batch_no) is None
        remembered.remember(result)
    for known in (remembered, Sessions.of(remembered.images())):
        first, second = answered(known, 1), answered(known, 2)
        assert [one is other for one, other in zip(first, second, strict=True)] == [
            True, True, False, True,
        ]  # fmt: skip
        assert first[0] is not first[3]
        assert second[2] == Duplicate(2)
