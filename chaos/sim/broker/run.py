"""Run seeds of the whole-broker simulation, one or many, and report failures so that they replay.

Owns: RunOutcome and the processes that share many seeds.
May not touch: the terminal.
Spec: the same seed gives the same run; set PYTHONHASHSEED=0 for the same story in another
process."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field

from chaos.sim.broker.cluster import BrokerCluster
from chaos.sim.broker.isolation import free_garbage
from chaos.sim.broker.plan import Plan
from chaos.sim.promises.broken import BrokenPromise


@dataclass(slots=True)
class RunOutcome:
    """`violation` is empty when every promise was kept."""

    seed: int
    plan: Plan
    violation: str
    virtual_seconds: float
    steps: int
    counters: Counter[str]
    story: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violation


def run_broker_seed(seed: int, *, plan: Plan | None = None, tell: bool = False) -> RunOutcome:
    """One cluster from start to end."""
    story: list[str] = []
    plan = plan or Plan.drawn_from(seed)
    cluster = BrokerCluster(seed, plan, tell=story.append if tell else None)
    violation = ""
    try:
        cluster.run()
    except BrokenPromise as broken:
        violation = str(broken)
    except Exception:  # noqa: BLE001 - code under test that crashes is a finding, with its seed
        violation = f"crash of the code under test:\n{traceback.format_exc()}"
    outcome = RunOutcome(
        seed=seed,
        plan=plan,
        violation=violation,
        virtual_seconds=cluster.world.now_ns / 1e9,
        steps=cluster.world.steps,
        counters=cluster.counters,
        story=story,
    )
    del cluster
    free_garbage()
    return outcome
