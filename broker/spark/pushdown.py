"""Filters of a query that the source can apply itself: on seq, time, subject and stream.

Owns: which filters become bounds of the plan, and which are left to Spark.
May not touch: sockets, plans.
Spec: Spark's pushFilters. A filter that is applied exactly is not evaluated again; one that only
narrows is returned. Times are compared as the column shows them, in microseconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from broker.spark.option_values import nanoseconds
from broker.spark.options import subjects_fit
from broker.subjects.grammar import matches, valid_subject

_US = 1000  # nanoseconds
_ALWAYS_THERE = frozenset({"seq", "subject", "time", "data", "time_ns", "stream"})


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What is left of the streams after the filters: bounds are [first, behind)."""

    first_seq: int = 1
    behind_seq: int | None = None
    first_ns: int | None = None
    behind_ns: int | None = None
    subjects: tuple[str, ...] = ()  # none: those of the options
    streams: frozenset[str] | None = None  # None: those of the options

    @property
    def times(self) -> tuple[int, ...]:
        return tuple(t for t in (self.first_ns, self.behind_ns) if t is not None)

    def with_seq(self, first: int, behind: int | None) -> Narrowed:
        low = max(self.first_seq, first)
        return replace(self, first_seq=low, behind_seq=_least(self.behind_seq, behind))

    def with_time(self, first: int | None, behind: int | None) -> Narrowed:
        low = first if self.first_ns is None else max(self.first_ns, first or self.first_ns)
        return replace(self, first_ns=low, behind_ns=_least(self.behind_ns, behind))


def narrow(filters: Iterable[Filter], subjects: tuple[str, ...]) -> tuple[Narrowed, list[Filter]]:
    """The bounds, and the filters that Spark must evaluate. `subjects` are those of the options."""
    found, left = Narrowed(), []
    for one in filters:
        column = _column(one)
        if isinstance(one, IsNotNull) and column in _ALWAYS_THERE:
            continue
        after: Narrowed | None = None
        exact = True
        if column in ("seq", "time", "time_ns"):
            after, exact = _by_order(found, one, column)
        elif column == "subject":
            after, exact = _by_subject(found, one, subjects)
        elif column == "stream":
            after = _by_stream(found, one)
        if after is not None:
            found = after
        if after is None or not exact:
            left.append(one)
    return found, left


def _column(one: Filter) -> str:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _by_order(found: Narrowed, one: Filter, column: str) -> tuple[Narrowed | None, bool]:
    """The new bounds, and whether they say all that the filter says."""
    if not isinstance(
        one,
        (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, In),
    ):
        return None, False
    given = one.value if isinstance(one, In) else [one.value]
    values = [value for value in (_number(v, column) for v in given) if value is not None]
    if not values or len(values) < len(given):
        return None, False
    low, high = min(values), max(values)
    first: int | None = low
    behind: int | None = high + 1
    match one:
        case GreaterThan():
            first, behind = low + 1, None
        case GreaterThanOrEqual():
            behind = None
        case LessThan():
            first, behind = None, low
        case LessThanOrEqual():
            first = None
        case _:
            pass
    exact = high - low + 1 == len(set(values))  # Spark looks for the gaps of a list
    if column == "seq":
        return found.with_seq(first or 1, behind), exact
    unit = _US if column == "time" else 1
    times = (None if bound is None else bound * unit for bound in (first, behind))
    return found.with_time(*times), exact


def _number(value: Any, column: str) -> int | None:
    """In units of the column: a sequence, microseconds or nanoseconds."""
    if column != "time":
        return value if isinstance(value, int) else None
    aware = isinstance(value, datetime) and value.tzinfo is not None
    return nanoseconds(value) // _US if aware else None


def _by_subject(
    found: Narrowed, one: Filter, subjects: tuple[str, ...]
) -> tuple[Narrowed | None, bool]:
    """The new bounds, and whether they say all that the filter says."""
    if found.subjects:  # narrowed before: the second filter is Spark's
        return None, False
    match one:
        case EqualTo() | EqualNullSafe():
            names, exact = [one.value], True
        case In():
            names, exact = list(one.value), True
        case StringStartsWith():
            words, dot, rest = one.value.rpartition(".")
            names, exact = ([f"{words}.>"] if dot and words else []), not rest
            if subjects or not names or not valid_subject(names[0].encode(), wildcards=True):
                return None, False
            return replace(found, subjects=tuple(names)), exact
        case _:
            return None, False
    if not all(isinstance(name, str) for name in names):
        return None, False
    wanted = tuple(dict.fromkeys(name for name in names if _may_be_stored(name, subjects)))
    if not wanted:
        return found.with_seq(1, 1), exact  # nothing can have such a subject
    return (replace(found, subjects=wanted), exact) if subjects_fit(wanted) else (None, False)


def _may_be_stored(name: str, subjects: tuple[str, ...]) -> bool:
    literal = name.encode()
    if not valid_subject(literal, wildcards=False):
        return False
    return not subjects or any(matches(literal, pattern.encode()) for pattern in subjects)


def _by_stream(found: Narrowed, one: Filter) -> Narrowed | None:
    if not isinstance(one, (EqualTo, EqualNullSafe, In)):
        return None
    names = frozenset(one.value if isinstance(one, In) else [one.value])
    return replace(found, streams=names if found.streams is None else found.streams & names)


def _least(one: int | None, other: int | None) -> int | None:
    known = [bound for bound in (one, other) if bound is not None]
    return min(known, default=None)
