"""Shrinks a failing run: leaves out faults and workloads while it still fails.

Owns: the order in which they are left out.
May not touch: how a run is made.
Spec: halves of the script first, then smaller parts, then single faults (delta debugging). The
seed stays, so the remaining faults happen at the same times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from chaos.sim.broker.plan import Plan

ATTEMPTS_MAX: Final = 150

Attempt = Callable[[Plan], bool]  # whether a run with this plan fails


@dataclass(frozen=True, slots=True)
class Shrunk:
    """`faults`: positions in the script of the whole plan."""

    faults: tuple[int, ...]
    plan: Plan
    attempts: int


def shrink(plan: Plan, fails: Attempt, attempts_max: int = ATTEMPTS_MAX) -> Shrunk:
    """The run with `plan` fails, and so does the one with the plan that is returned."""
    whole, attempts = plan, 0

    def still_fails(candidate: Plan) -> bool:
        nonlocal attempts
        attempts += 1
        return fails(candidate)

    for name in plan.workloads:
        fewer = tuple(one for one in plan.workloads if one != name)
        if fewer and attempts < attempts_max and still_fails(replace(plan, workloads=fewer)):
            plan = replace(plan, workloads=fewer)
    kept = tuple(range(len(whole.script)))
    size = len(kept)
    while size and attempts < attempts_max:
        position, dropped = 0, False
        while position < len(kept) and attempts < attempts_max:
            fewer_faults = kept[:position] + kept[position + size :]
            script = tuple(whole.script[number] for number in fewer_faults)
            if still_fails(replace(plan, script=script)):
                kept, plan, dropped = fewer_faults, replace(plan, script=script), True
            else:
                position += size
        if size > 1 or not dropped:
            size = size // 2
    return Shrunk(kept, plan, attempts)
