"""Deadlines of delivery engines: the earliest one counts, stale entries are skipped."""

from __future__ import annotations

import random

import pytest

from broker.cluster.replica.delivery_deadlines import DeliveryDeadlines


class Engine:
    def __init__(self, at: int | None = None) -> None:
        self.at = at

    def next_deadline(self) -> int | None:
        return self.at


def test_engines_are_due_in_order() -> None:
    deadlines: DeliveryDeadlines[Engine] = DeliveryDeadlines()
    late, early, never = Engine(30), Engine(10), Engine()
    for engine in (late, early, never):
        deadlines.update(engine)
    assert deadlines.earliest() == 10
    assert deadlines.due(9) == []
    assert deadlines.due(30) == [early, late]
    assert deadlines.earliest() is None


def test_an_earlier_deadline_replaces_a_later_one() -> None:
    deadlines: DeliveryDeadlines[Engine] = DeliveryDeadlines()
    engine = Engine(30)
    deadlines.update(engine)
    engine.at = 10
    deadlines.update(engine)
    assert deadlines.due(10) == [engine]
    assert deadlines.earliest() is None
    assert deadlines.due(100) == []


def test_a_forgotten_engine_is_not_due() -> None:
    deadlines: DeliveryDeadlines[Engine] = DeliveryDeadlines()
    gone, stays = Engine(10), Engine(20)
    deadlines.update(gone)
    deadlines.update(stays)
    deadlines.forget(gone)
    assert deadlines.earliest() == 20
    assert deadlines.due(20) == [stays]


@pytest.mark.parametrize("seed", range(20))
def test_no_deadline_is_missed(seed: int) -> None:
    """An engine that runs whenever it is due never has a deadline in the past."""
    draw = random.Random(seed)
    deadlines: DeliveryDeadlines[Engine] = DeliveryDeadlines()
    engines = [Engine() for _ in range(5)]
    now = 0
    for _ in range(300):
        now += draw.randrange(5)
        for engine in {*deadlines.due(now), draw.choice(engines)}:
            engine.at = draw.choice([None, now + draw.randrange(1, 40)])
            deadlines.update(engine)
        assert all(engine.at is None or engine.at > now for engine in engines)
        wanted = min((engine.at for engine in engines if engine.at is not None), default=None)
        earliest = deadlines.earliest()
        assert wanted is None or (earliest is not None and earliest <= wanted)
