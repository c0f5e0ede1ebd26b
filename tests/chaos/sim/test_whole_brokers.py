"""Whole brokers under simulation: fresh seeds are clean, and a seed repeats itself."""

from __future__ import annotations

import pytest

from chaos.sim.broker.run import run_broker_seed

FRESH = 10  # per test run; jetraft chaos sim runs more


@pytest.mark.parametrize("seed", range(FRESH))
def test_every_promise_is_kept(seed: int) -> None:
    outcome = run_broker_seed(seed)
    assert outcome.ok, f"seed {seed}: {outcome.violation}"


def test_the_same_seed_gives_the_same_story() -> None:
    first, second = (run_broker_seed(58, tell=True) for _ in range(2))
    assert first.story == second.story
    assert len(first.story) > 20
