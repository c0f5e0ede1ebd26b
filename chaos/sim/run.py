"""The way in: run one seed, run many, tell what went wrong so that it can be replayed.

Owns: Outcome, Summary, and the processes that share many seeds.
May not touch: the terminal; the command line is broker.cli's.
Spec: a failure names its seed, and run_seed(seed, trace=True) shows the same run again."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context

from chaos.sim.checks import Violation
from chaos.sim.cluster import Cluster
from chaos.sim.faults import Faults
from raft.types import InvariantViolation

NO_BUGS: frozenset[str] = frozenset()
PLANTED_BUGS = (
    "forget_vote",  # forgets its vote on restart
    "append_before_flush",  # answers an append before the flush
    "commit_earlier_term",  # commits an earlier term's entry by counting
    "pre_vote_any_log",  # skips pre-vote's log check
    "truncate_stale",  # truncates on a stale append
    "count_learner",  # counts a learner as a voter
    "late_members",  # applies a configuration late
    "read_unconfirmed",  # serves a read without confirming leadership
    "keep_damaged",  # keeps a damaged entry
    "lose_snapshot_tail",  # loses the tail of a snapshot
)
TRACE_LINES_SHOWN = 120


@dataclass(slots=True)
class SeedOutcome:
    """What became of one seed. `violation` is empty when every promise was kept."""

    seed: int
    violation: str
    virtual_seconds: float
    steps: int
    counters: Counter[str]
    faults: Faults
    trace: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violation

    def report(self) -> str:
        """A run as a person wants to read it: seed, verdict, the last of the trace, replay."""
        trace = self.trace
        if not trace:
            trace = run_seed(self.seed, bugs=self.faults.core.bugs, trace=True).trace
        lines = [f"seed {self.seed}: {self.violation or 'clean'}", f"  {self.faults}"]
        hidden = len(trace) - TRACE_LINES_SHOWN
        if hidden > 0:
            lines.append(f"  ... {hidden} earlier lines; run_seed({self.seed}, trace=True) has all")
        lines += trace[-TRACE_LINES_SHOWN:]
        if not self.ok:
            lines.append(f"replay: jetraft chaos sim --seed {self.seed}")
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


def run_seed(seed: int, *, bugs: frozenset[str] = NO_BUGS, trace: bool = False) -> SeedOutcome:
    """One whole life of a cluster. Deterministic: the same seed gives the same outcome."""
    faults = Faults.drawn_from(seed, bugs)
    lines: list[str] | None = [] if trace else None
    cluster = Cluster(seed, faults, trace=lines)
    violation = ""
    try:
        cluster.run()
    except (Violation, InvariantViolation) as broken:
        violation = f"{type(broken).__name__}: {broken}"
    except Exception:  # noqa: BLE001 - a core that falls over is a finding, with its seed
        violation = f"crash of the code under test:\n{traceback.format_exc()}"
    return SeedOutcome(
        seed=seed,
        violation=violation,
        virtual_seconds=cluster.schedule.now_us / 1e6,
        steps=cluster.schedule.steps,
        counters=cluster.checks.counters,
        faults=faults,
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
    """As run_seeds, with what happened in all of them added up."""
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
    """The first seed that shows a planted bug, None when none of them does."""
    for seed in range(first, first + count):
        outcome = run_seed(seed, bugs=frozenset({bug}))
        if not outcome.ok:
            return outcome
    return None
