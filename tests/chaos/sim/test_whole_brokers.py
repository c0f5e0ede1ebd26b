"""Whole brokers under simulation: fresh seeds are clean, every kind of fault really happens, and
the simulator decides nothing that the broker decides."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from chaos.sim.broker.cluster import COMPRESSED, SEALED
from chaos.sim.broker.fault_script import KINDS
from chaos.sim.broker.marks import log_mark
from chaos.sim.broker.plan import Plan
from chaos.sim.broker.run import run_broker_seed
from tests.support.broker_seeds import FIRST_HALF, run_portion

ROOT = Path(__file__).resolve().parents[3]

SEEN: Counter[str] = Counter()  # events in the portions below


@pytest.mark.parametrize("portion", FIRST_HALF)
def test_every_promise_is_kept(portion: int) -> None:
    run_portion(portion, SEEN)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fault_really_happens(kind: str) -> None:
    """A simulator that injects no faults proves nothing."""
    for seed in range(1000, 1020):
        if kind in SEEN:
            break
        SEEN.update(run_broker_seed(seed, plan=Plan.drawn_from(seed, (kind,))).counters)
    assert kind in SEEN


# By what is rare: the kinds of faults with which it happens; none: those that a seed draws.
RARE: dict[str, tuple[str, ...]] = {
    COMPRESSED: (),
    SEALED: (),
    "host: snapshots_resumed": ("unsteady return",),
    log_mark("erased messages are still on disk, will retry: %s"): ("crowded disk",),
}


@pytest.mark.parametrize("rare", RARE)
def test_what_short_runs_must_be_made_for_happens(rare: str) -> None:
    for seed in range(1000, 1100):
        if rare in SEEN:
            break
        SEEN.update(run_broker_seed(seed, plan=Plan.drawn_from(seed, RARE[rare])).counters)
    assert rare in SEEN


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
