"""The seeds of whole brokers that the tests run: fresh ones, fixed ones, those that failed once.

They are cut into portions, and these into two halves, each in a test file of its own: parallel test
processes share files."""

from __future__ import annotations

from collections import Counter

from chaos.sim.broker.run import run_broker_seed
from tests.support.fresh_seeds import fresh_seeds

FRESH_SEEDS = 200  # new ones for every change of the code; a failure names its seed
FIXED_SEEDS = 20
PORTIONS = 20
FIRST_HALF, SECOND_HALF = range(PORTIONS // 2), range(PORTIONS // 2, PORTIONS)

# Each seed failed once, for the given reason. A seed is dropped when a change of the simulator
# gives it another schedule; what it found has a test of its own.
REGRESSIONS: dict[int, str] = {
    10206: "a stopping meta leader chose a successor that was no voter, and did not flush its log",
    10182: "a node was started on a disk that did not work",
    12_609_632_661: "a consumer was served after its deletion for inactivity had been proposed",
    90_000_529: "a late answer of a snapshot's receiver made all answers late, without an end",
    41_000_219: "the check took a replay after a restart for the end of a consumer",
    8_100_004_652: "two snapshots to a follower that had lost its data ended each other, for ever",
    8_100_001_189: "a new leader met damage when it looked for the next expiry: a traceback",
    9_500_000_477: "a group met damage of another one when its snapshot was installed: a traceback",
    106_520_725_394: "a node that was removed refused publishes that it had sent to the leader",
}


def run_portion(portion: int, seen: Counter[str]) -> None:
    """`seen`: gets what happened."""
    fresh = fresh_seeds(f"brokers {portion}", FRESH_SEEDS // PORTIONS)
    fixed = range(portion, FIXED_SEEDS, PORTIONS)
    for seed in (*(REGRESSIONS if portion == 0 else ()), *fixed, *fresh):
        outcome = run_broker_seed(seed)
        seen.update(outcome.counters)
        assert outcome.ok, f"jetraft chaos sim --seed {seed} --shrink: {outcome.violation}"
