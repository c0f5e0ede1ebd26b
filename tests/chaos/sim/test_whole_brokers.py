"""Whole brokers under simulation: fresh seeds are clean, every kind of fault really happens, and
the simulator decides nothing that the broker decides."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from chaos.sim.broker.fault_script import KINDS
from chaos.sim.broker.run import run_broker_seed
from tests.support.fresh_seeds import fresh_seeds

FRESH_SEEDS = 200  # new ones for every change of the code; a failure names its seed
FIXED_SEEDS = 20
PORTIONS = 20
ROOT = Path(__file__).resolve().parents[3]

# Each seed failed once, for the given reason. A seed is dropped when a change of the simulator
# gives it another schedule; what it found has a test of its own.
REGRESSIONS: dict[int, str] = {
    10206: "a stopping meta leader chose a successor that was no voter, and did not flush its log",
    10182: "a node was started on a disk that did not work",
    106_520_725_394: "a node that was removed refused publishes that it had sent to the leader",
}

SEEN: Counter[str] = Counter()  # events in the portions below


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_every_promise_is_kept(portion: int) -> None:
    fresh = fresh_seeds(f"brokers {portion}", FRESH_SEEDS // PORTIONS)
    fixed = range(portion, FIXED_SEEDS, PORTIONS)
    for seed in (*(REGRESSIONS if portion == 0 else ()), *fixed, *fresh):
        outcome = run_broker_seed(seed)
        SEEN.update(outcome.counters)
        assert outcome.ok, f"jetraft chaos sim --seed {seed} --shrink: {outcome.violation}"


def test_the_faults_really_happened() -> None:
    """A simulator that injects no faults proves nothing."""
    for seed in range(1000, 1200):
        if SEEN.keys() >= KINDS.keys():
            break
        SEEN.update(run_broker_seed(seed).counters)
    assert sorted(KINDS.keys() - SEEN.keys()) == []


def test_the_same_seed_gives_the_same_story() -> None:
    first, second = (run_broker_seed(58, tell=True) for _ in range(2))
    assert first.story == second.story
    assert len(first.story) > 20


# What the simulator replaces. These stand for parts of a computer, and decide nothing.
STAND_INS = {"EventLoop"}  # asyncio's, see chaos/sim/world/node_loop.py


def _classes(top: Path) -> dict[str, ast.ClassDef]:
    return {
        node.name: node
        for path in sorted(top.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }


def test_the_simulator_holds_no_second_implementation_of_a_decision() -> None:
    """Its classes derive from none of the broker and carry no name of one. Only planted bugs
    replace functions of the broker, and the observer wraps two."""
    real = {**_classes(ROOT / "broker"), **_classes(ROOT / "raft")}
    for room in ("world", "broker", "clients", "consumers", "promises"):
        for name, found in _classes(ROOT / "chaos/sim" / room).items():
            assert name not in real, f"chaos/sim/{room} has a {name} of its own"
            bases = {base.id for base in found.bases if isinstance(base, ast.Name)} - STAND_INS
            assert not bases & real.keys(), f"{name} derives from {bases & real.keys()}"


def test_only_bugs_observers_and_limits_replace_functions_of_the_broker() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "chaos/sim").rglob("*.py"))
        if "Replacement(" in path.read_text() and "/bugs/" not in path.as_posix()
    }
    assert users == {
        "chaos/sim/broker/cluster.py",
        "chaos/sim/broker/queue_bounds.py",
        "chaos/sim/promises/consumer_states.py",
        "chaos/sim/promises/every_step.py",
    }
