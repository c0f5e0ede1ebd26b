"""A planted bug: functions of the real broker, replaced while a run lasts.

Owns: how a bug is described.
May not touch: runs. A bug is in force for all nodes of a run, from before the first one starts.
To add one: a function that takes the original and returns its replacement, and an entry in the
table of its area (a module beside this one); chaos/sim/broker/planted_bugs.py joins the tables."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from chaos.sim.world.replacement import Replacement, replaced

__all__ = ["BrokerBug", "Replacement"]


@dataclass(frozen=True, slots=True)
class BrokerBug:
    rule: str  # the rule that it breaks
    replaces: tuple[Replacement, ...]
    found_by: int  # a seed that reveals it; the test suite begins its search there
    workloads: tuple[str, ...]  # the work in which it shows; other work would only take time
    faults: tuple[str, ...] = ()  # the kinds that reveal it; without any, those that a seed draws

    def installed(self) -> AbstractContextManager[None]:
        return replaced(self.replaces)
