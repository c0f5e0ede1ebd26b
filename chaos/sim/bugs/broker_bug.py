"""A planted bug: functions of the real broker, replaced while a run lasts.

Owns: how a bug is described and installed.
May not touch: runs. A bug is in force for all nodes of a run, from before the first one starts.
To add one: a function that takes the original and returns its replacement, and an entry in the
table of its area (a module beside this one); chaos/sim/broker/planted_bugs.py joins the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Replacement:
    """`make` gets what `owner` defines under `name` (a function, a property, a constant) and
    returns what takes its place. `owner` must define it itself, not inherit it."""

    owner: type | ModuleType
    name: str
    make: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class BrokerBug:
    rule: str  # the rule that it breaks
    replaces: tuple[Replacement, ...]
    found_by: int  # a seed that reveals it; the test suite begins its search there
    workloads: tuple[str, ...]  # the work in which it shows; other work would only take time

    @contextmanager
    def installed(self) -> Iterator[None]:
        before = [(one, vars(one.owner)[one.name]) for one in self.replaces]
        try:
            for one, original in before:
                setattr(one.owner, one.name, one.make(original))
            yield
        finally:
            for one, original in reversed(before):
                setattr(one.owner, one.name, original)
