"""Run seeds of the whole-broker simulation, one or many, and report failures so that they replay.

Owns: RunOutcome, BrokerSurvey and the processes that share many seeds.
May not touch: the terminal.
Spec: the same seed gives the same run, in every process and on every machine."""

from __future__ import annotations

import os
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

from chaos.sim.broker.cluster import BrokerCluster
from chaos.sim.broker.isolation import free_garbage, keep_older_objects
from chaos.sim.broker.marks import known_marks
from chaos.sim.broker.plan import Plan
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Journal, Operation

OPERATIONS_SHOWN = 12
NAMING_FIELDS = ("id", "batch")  # of operations: a verdict names them as words


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
    operations: list[str] = field(default_factory=list)  # that led to the violation

    @property
    def ok(self) -> bool:
        return not self.violation


def run_broker_seed(seed: int, *, plan: Plan | None = None, tell: bool = False) -> RunOutcome:
    """One cluster from start to end."""
    keep_older_objects()
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
        operations=leading_to(violation, cluster.journal) if violation else [],
    )
    del cluster
    free_garbage()
    return outcome


def leading_to(violation: str, journal: Journal) -> list[str]:
    """The operations that the violation names, or the last ones."""
    named = [one for one in journal.operations if _is_named(one, violation)]
    return [str(one) for one in (named or journal.operations)[-OPERATIONS_SHOWN:]]


def _is_named(operation: Operation, violation: str) -> bool:
    payload = operation.fields.get("payload")
    if isinstance(payload, bytes) and repr(payload[:24]) in violation:
        return True
    words = re.split(r"[\s,:]+", violation)
    return any(operation.fields.get(name) in words for name in NAMING_FIELDS)


@dataclass(slots=True)
class BrokerSurvey:
    """What many seeds together have shown."""

    seeds: int = 0
    failures: list[RunOutcome] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    virtual_seconds: float = 0.0

    def add(self, outcome: RunOutcome) -> None:
        self.seeds += 1
        self.virtual_seconds += outcome.virtual_seconds
        self.counters.update(outcome.counters)
        if not outcome.ok:
            self.failures.append(outcome)

    def unreached(self) -> list[str]:
        return sorted(known_marks() - set(self.counters))


def survey_brokers(
    seeds: Sequence[int],
    jobs: int = 1,
    progress: Callable[[int], object] | None = None,
    *,
    workloads: tuple[str, ...] | None = None,
) -> BrokerSurvey:
    """`progress(done)` is called after each seed. `workloads`: instead of those that a seed
    draws."""
    survey = BrokerSurvey()
    for outcome in _outcomes(seeds, jobs, partial(run_seed_with, workloads)):
        survey.add(outcome)
        if progress is not None:
            progress(survey.seeds)
    survey.failures.sort(key=lambda outcome: outcome.seed)
    return survey


def run_seed_with(workloads: tuple[str, ...] | None, seed: int) -> RunOutcome:
    return run_broker_seed(seed, plan=Plan.drawn_from(seed).reduced(workloads=workloads))


def _outcomes(
    seeds: Sequence[int], jobs: int, run_one: Callable[[int], RunOutcome]
) -> Iterator[RunOutcome]:
    if jobs <= 1:
        yield from map(run_one, seeds)
        return
    with fixed_hashes(), ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(run_one, seed) for seed in seeds]
        try:
            for run in as_completed(runs):
                yield run.result()
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def fixed_hashes() -> Iterator[None]:
    """Processes that are started meanwhile iterate over sets in the same order every time. Nothing
    should depend on that order; if something does, the run is still reproducible."""
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before
