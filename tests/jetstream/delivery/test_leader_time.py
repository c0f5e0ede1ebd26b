"""Dates at a leader that learns the time of the cluster late: they go by that time."""

from __future__ import annotations

from tests.support.consumer_rig import START, Bench, S

HOUR = 3600 * S


def test_a_pause_ends_by_the_time_of_the_cluster() -> None:
    bench = Bench(durable_name="C", ack_policy="explicit")
    bench.publish("a")
    bench.pull()
    bench.pause(START + HOUR)
    assert bench.seqs() == []
    assert bench.delivery.next_deadline() == START + HOUR
    bench.step(HOUR - S)
    assert bench.seqs() == []
    assert bench.delivery.next_deadline() == START + S
    bench.advance(S)
    assert bench.seqs() == [1]


def test_the_times_shown_are_those_of_the_cluster() -> None:
    bench = Bench(durable_name="C", ack_policy="explicit")
    bench.publish("a", "a")
    bench.step(HOUR)
    bench.pull(body='{"batch":2}')
    bench.out()
    bench.ack(1)
    bench.out()
    numbers = bench.delivery.numbers(bench.now)
    assert numbers.last_delivered_ns == numbers.last_acked_ns == START + HOUR
    assert bench.of.last_acked_ns == START + HOUR


def test_an_unused_consumer_lives_as_long_as_it_may_whatever_the_time() -> None:
    bench = Bench(ack_policy="explicit", inactive_threshold=10 * S)
    bench.step(HOUR)
    assert bench.out() == []
    bench.advance(12 * S)
    assert [line.split()[0] for line in bench.out()] == ["propose"]
