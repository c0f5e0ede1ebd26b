"""Entry point of the simulator: run one seed or many, and report failures so that they replay.

Owns: SeedOutcome, SurveySummary, and the processes that share many seeds.
May not touch: the terminal (broker/cli/chaos.py does).
Spec: a failure names its seed, and run_seed(seed, trace=True) repeats the same run."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context

from chaos.sim.consensus.checks import Violation
from chaos.sim.consensus.cluster import SimCluster
from chaos.sim.consensus.faults import Faults
from chaos.sim.consensus.planted_bugs import NO_BUG, PLANTED_BUGS
from raft.types import InvariantViolation

TRACE_LINES_SHOWN = 120


@dataclass(slots=True)
class SeedOutcome:
    """The result of one seed. `violation` is empty when no rule was broken."""

    seed: int
    violation: str
    virtual_seconds: float
    steps: int
    counters: Counter[str]
    faults: Faults
    bug: str | None = None  # the planted bug, if any
    trace: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violation

    def report(self) -> str:
        """A readable report: seed, verdict, the end of the trace, the command that replays it."""
        trace = self.trace
        if not trace:
            trace = run_seed(self.seed, bug=self.bug, trace=True).trace
        lines = [f"seed {self.seed}: {self.violation or 'clean'}", f"  {self.faults}"]
        hidden = len(trace) - TRACE_LINES_SHOWN
        if hidden > 0:
            lines.append(f"  ... {hidden} earlier lines; run_seed({self.seed}, trace=True) has all")
        lines += trace[-TRACE_LINES_SHOWN:]
        if not self.ok:
            lines.append(f"replay: jetraft chaos sim --raft --seed {self.seed}")
        return "\n".join(lines)


@dataclass(slots=True)
class SurveySummary:
    first: int
    count: int
    failures: list[SeedOutcome]
    counters: Counter[str]
    virtual_seconds: float

    @property
    def ok(self) -> bool:
        return not self.failures


def run_seed(seed: int, *, bug: str | None = None, trace: bool = False) -> SeedOutcome:
    """Run one cluster from start to end. Deterministic: the same seed gives the same outcome."""
    faults = Faults.drawn_from(seed)
    planted = NO_BUG if bug is None else PLANTED_BUGS[bug]
    lines: list[str] | None = [] if trace else None
    cluster = SimCluster(
        seed,
        faults,
        trace=lines,
        parts=planted.parts,
        node_type=planted.node_type,
        rounds_type=planted.rounds_type,
    )
    violation = ""
    try:
        cluster.run()
    except (Violation, InvariantViolation) as broken:
        violation = f"{type(broken).__name__}: {broken}"
    except Exception:  # noqa: BLE001 - a core that crashes is a finding, with its seed
        violation = f"crash of the code under test:\n{traceback.format_exc()}"
    return SeedOutcome(
        seed=seed,
        violation=violation,
        virtual_seconds=cluster.environment.schedule.now_us / 1e6,
        steps=cluster.environment.schedule.steps,
        counters=cluster.checks.counters,
        faults=faults,
        bug=bug,
        trace=lines or [],
    )


def run_seeds(
    first: int,
    count: int,
    jobs: int = 1,
    progress: Callable[[int], object] | None = None,
) -> list[SeedOutcome]:
    """The failures among seeds first .. first + count - 1; `progress(done)` after each seed."""
    return survey(first, count, jobs, progress).failures


def survey(
    first: int,
    count: int,
    jobs: int = 1,
    progress: Callable[[int], object] | None = None,
) -> SurveySummary:
    """As run_seeds, with the counters of all seeds added up."""
    summary = SurveySummary(first, count, [], Counter(), 0.0)
    for done, outcome in enumerate(_outcomes(first, count, jobs), 1):
        summary.counters += outcome.counters
        summary.virtual_seconds += outcome.virtual_seconds
        if not outcome.ok:
            summary.failures.append(outcome)
        if progress is not None:
            progress(done)
    summary.failures.sort(key=lambda outcome: outcome.seed)
    return summary


def _outcomes(first: int, count: int, jobs: int) -> Iterator[SeedOutcome]:
    if jobs <= 1:
        for seed in range(first, first + count):
            yield run_seed(seed)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(run_seed, seed) for seed in range(first, first + count)]
        try:
            for run in as_completed(runs):
                yield run.result()
        finally:
            pool.shutdown(cancel_futures=True)


def find_bug(bug: str, *, first: int = 0, count: int = 2000) -> SeedOutcome | None:
    """The first seed that reveals a planted bug, None when none of them does."""
    for seed in range(first, first + count):
        outcome = run_seed(seed, bug=bug)
        if not outcome.ok:
            return outcome
    return None
