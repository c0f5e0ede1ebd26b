"""What a consumer of a large stream has to deliver is counted and searched for in pumps of bounded
work, and its clients notice nothing but the time."""

from __future__ import annotations

import pytest

from broker.jetstream.delivery.effects import Deliver, StatusMessage
from broker.store import segments
from broker.store.index.subject_filter import SubjectFilter
from broker.subjects import finish
from tests.support.consumer_rig import Bench

ROWS, SEGMENTS = 1024, 4
PUMP_MAX = 4 * 512 + ROWS + 1  # subjects compared: four steps of a count, and a segment
PUMPS_MAX = 100


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many subjects were compared with a filter."""
    monkeypatch.setattr(segments, "SEAL_ROWS", ROWS)
    monkeypatch.setattr("broker.store.messages.NAMES_PER_TAKE_MAX", ROWS)
    count = [0]
    fits = SubjectFilter.__call__

    def counted(self: SubjectFilter, subject: bytes) -> bool:
        count[0] += 1
        return fits(self, subject)

    monkeypatch.setattr(SubjectFilter, "__call__", counted)
    return count


def consumer(start: int, filter_subject: str) -> Bench:
    bench = Bench()
    bench.publish(*(f"s.{at}.x" for at in range(ROWS * SEGMENTS)), "s.end.y")
    bench.create(
        ack_policy="explicit",
        durable_name="C",
        filter_subject=filter_subject,
        deliver_policy="by_start_sequence",
        opt_start_seq=start,
    )
    return bench


def pumps(bench: Bench, compared: list[int]) -> list[Deliver | StatusMessage]:
    """What the clients get, until there is no more work; each pump does little."""
    sent: list[Deliver | StatusMessage] = []
    for _ in range(PUMPS_MAX):
        before = compared[0]
        effects = bench.delivery.pump(bench.now)
        assert compared[0] - before <= PUMP_MAX
        sent += [e for e in effects if isinstance(e, Deliver | StatusMessage)]
        if not bench.delivery.more_work:
            return sent
    raise AssertionError("no end")


@pytest.mark.parametrize("start", [1, 2], ids=["counted by the index", "counted by blocks"])
def test_the_only_match_is_found_at_the_end(compared: list[int], start: int) -> None:
    bench = consumer(start, "s.*.y")
    compared[0] = 0
    bench.pull("r", '{"batch":5}')
    assert compared[0] <= PUMP_MAX
    (delivered,) = pumps(bench, compared)
    assert isinstance(delivered, Deliver)
    assert delivered.rows.subject(delivered.indices[0]) == b"s.end.y"
    assert delivered.pending == 0


@pytest.mark.parametrize("start", [1, 2])
def test_who_does_not_wait_is_told_after_the_search(compared: list[int], start: int) -> None:
    bench = consumer(start, "s.*.none")
    bench.pull("r", '{"batch":5,"no_wait":true}')
    (status,) = pumps(bench, compared)
    assert isinstance(status, StatusMessage)
    assert status.to == b"r"
    assert b"404" in status.header


@pytest.mark.parametrize("start", [1, 2])
def test_who_does_not_wait_gets_what_is_there(compared: list[int], start: int) -> None:
    bench = consumer(start, "s.*.y")
    bench.pull("r", '{"batch":5,"no_wait":true}')
    delivered, *_ = pumps(bench, compared)
    assert isinstance(delivered, Deliver)


@pytest.mark.usefixtures("compared")
def test_a_request_that_waits_for_the_count_is_told_when_the_leader_goes() -> None:
    bench = consumer(2, "s.*.y")
    bench.pull("r", '{"batch":5,"no_wait":true}')
    (closed,) = bench.delivery.close("409 Leadership Change")
    assert isinstance(closed, StatusMessage)
    assert closed.to == b"r"


@pytest.mark.usefixtures("compared")
def test_messages_removed_during_a_count_are_counted_again() -> None:
    bench = consumer(2, "s.*.x")
    counting = bench.delivery.counting(bench.now)
    next(counting)
    bench.remove(*range(3, 13))
    for _ in counting:
        pass
    for _ in bench.delivery.counting(bench.now):
        pass
    assert bench.delivery.numbers(bench.now).num_pending == ROWS * SEGMENTS - 1 - 10


def test_the_count_of_a_new_consumer_serves_its_first_message(compared: list[int]) -> None:
    """The answer to its creation shows the number, and so does the first message."""
    bench = consumer(2, "s.*.x")
    every = ROWS * SEGMENTS - 1
    assert finish(bench.delivery.counting(bench.now)) == every
    compared[0] = 0
    bench.pull("r", '{"batch":1}')
    (delivered,) = pumps(bench, compared)
    assert isinstance(delivered, Deliver)
    assert delivered.pending == every - 1
    assert compared[0] <= ROWS + 1  # a segment was searched, and nothing counted
    assert finish(bench.delivery.counting(bench.now)) == every  # as it was before that message
