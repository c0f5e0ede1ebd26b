"""Replaces functions of the real broker during a run, for planted bugs and for observers.

Owns: how a replacement is made and undone.
May not touch: what is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Replacement:
    """`make` gets what `owner` defines under `name` (a function, a property, a constant) and
    returns the replacement. `owner` must define it itself, not inherit it."""

    owner: type | ModuleType
    name: str
    make: Callable[[Any], Any]


@contextmanager
def replaced(replacements: Sequence[Replacement]) -> Iterator[None]:
    before: list[tuple[Replacement, Any]] = []
    try:
        for one in replacements:
            original = vars(one.owner)[one.name]
            before.append((one, original))
            setattr(one.owner, one.name, one.make(original))
        yield
    finally:
        for one, original in reversed(before):
            setattr(one.owner, one.name, original)
