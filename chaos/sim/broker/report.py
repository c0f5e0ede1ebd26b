"""The report on one seed: shrunk if it failed, as a story that a person can read.

Owns: the text.
May not touch: the terminal.
Spec: the report names the command that repeats exactly this run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.sim.broker.plan import Plan
from chaos.sim.broker.planted_bugs import BROKER_BUGS
from chaos.sim.broker.run import RunOutcome, run_broker_seed
from chaos.sim.broker.shrink import shrink

STORY_LINES_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Replay:
    """One run, as the command line names it. None: as the seed draws it."""

    seed: int
    faults: tuple[int, ...] | None = None  # positions in the script
    workloads: tuple[str, ...] | None = None
    bug: str | None = None

    def plan(self) -> Plan:
        kinds = BROKER_BUGS[self.bug].faults if self.bug is not None else ()
        plan = Plan.drawn_from(self.seed, kinds)
        return plan.reduced(faults=self.faults, workloads=self.workloads)

    def run(self, plan: Plan | None = None, *, tell: bool = False) -> RunOutcome:
        plan = plan or self.plan()
        if self.bug is None:
            return run_broker_seed(self.seed, plan=plan, tell=tell)
        with BROKER_BUGS[self.bug].installed():
            return run_broker_seed(self.seed, plan=plan, tell=tell)

    def command(self) -> str:
        words = ["jetraft", "chaos", "sim", "--seed", str(self.seed)]
        if self.faults is not None:
            words += ["--faults", ",".join(map(str, self.faults)) or "none"]
        for name in self.workloads or ():
            words += ["--workload", name]
        if self.bug is not None:
            words += ["--bug", self.bug]
        return shlex.join(words)


def replay_report(replay: Replay) -> tuple[bool, str]:
    """Run it once. Returns whether every promise was kept, and the story."""
    outcome = replay.run(tell=True)
    return outcome.ok, "\n".join(_lines(replay, outcome))


def shrunk_report(replay: Replay) -> str:
    """For a run that fails: the story of the smallest run that still fails."""
    whole = replay.plan()
    found = shrink(whole, lambda plan: not replay.run(plan).ok)
    if replay.faults is None:
        faults = found.faults
    else:
        faults = tuple(replay.faults[position] for position in found.faults)
    smallest = Replay(replay.seed, faults, found.plan.workloads, replay.bug)
    outcome = smallest.run(tell=True)
    head = (
        f"seed {replay.seed} fails. Of {len(whole.script)} faults, {len(faults)} are needed "
        f"({found.attempts} attempts):"
    )
    return "\n".join([head, *_lines(smallest, outcome)])


def _lines(replay: Replay, outcome: RunOutcome) -> Sequence[str]:
    plan = outcome.plan
    lines = [f"{plan.nodes} nodes; work: {', '.join(plan.workloads)}; faults:"]
    lines += [f"  {fault}" for fault in plan.script] or ["  none"]
    lines.append("story (virtual seconds, who, what):")
    hidden = len(outcome.story) - STORY_LINES_SHOWN
    if hidden > 0:
        lines.append(f"  ... {hidden} earlier lines")
    lines += outcome.story[-STORY_LINES_SHOWN:]
    if outcome.operations:
        lines += ["operations that led to it:", *(f"  {one}" for one in outcome.operations)]
    lines.append(f"verdict: {outcome.violation or 'every promise was kept'}")
    lines.append(f"repeat: {replay.command()}")
    return lines
