"""Bugs planted in the broker: each is found, and its seed is clean without it."""

from __future__ import annotations

import pytest

from chaos.sim.broker.planted_bugs import BROKER_BUGS, find_bug, run_with_bug
from chaos.sim.broker.run import run_broker_seed
from chaos.sim.bugs.broker_bug import BrokerBug, Replacement

NEAR = 60  # seeds; the table says where to begin, a full search takes 2,000


@pytest.mark.parametrize("bug", BROKER_BUGS)
def test_planted_bug_is_found(bug: str) -> None:
    found = find_bug(bug, BROKER_BUGS[bug].found_by, NEAR)
    assert found is not None, f"{bug} is not found"
    assert run_with_bug(found.seed, bug).violation == found.violation
    clean = run_broker_seed(found.seed, plan=found.plan)
    assert clean.ok, f"seed {found.seed} without the bug: {clean.violation}"


def test_what_a_bug_replaces_returns_after_the_run() -> None:
    class Owner:
        def answer(self) -> int:
            return 1

    original = vars(Owner)["answer"]
    bug = BrokerBug("", (Replacement(Owner, "answer", lambda _: lambda self: 2),), 0, ())
    with bug.installed():
        assert Owner().answer() == 2
    assert vars(Owner)["answer"] is original
