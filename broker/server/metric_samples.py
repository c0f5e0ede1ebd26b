"""Metric families and samples, and their Prometheus text form.

Owns: the types in which the parts of a node report metrics, and their text form.
May not touch: where the values come from.
Spec: Prometheus text exposition format 0.0.4: the samples of a family stand together, under one
HELP and one TYPE line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

ROWS_PER_PART = 1_024
SampleRows: TypeAlias = list[tuple[str | float, ...]]  # labels, then numbers; no bools


class Family(NamedTuple):
    """One metric name. `kind` is counter, gauge or histogram."""

    name: str
    kind: str
    help: str


class Sample(NamedTuple):
    family: Family
    value: float
    labels: str = ""  # made by labels()


def gauge(name: str, help: str) -> Family:
    return Family(f"jetraft_{name}", "gauge", help)


def counter(name: str, help: str) -> Family:
    return Family(f"jetraft_{name}_total", "counter", help)


def histogram(name: str, help: str) -> Family:
    return Family(f"jetraft_{name}_seconds", "histogram", help)


def labels(given: Mapping[str, str]) -> str:
    """{name="value",...}, with quotes, backslashes and line ends escaped."""
    pairs = (f'{name}="{escaped(value)}"' for name, value in given.items())
    return "{" + ",".join(pairs) + "}"


def escaped(value: str) -> str:
    """A value between the quotes of a label."""
    if '"' not in value and "\\" not in value and "\n" not in value:
        return value
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Exposition:
    """Collects samples in any order; `text` has them family by family.

    A family has either single samples or the rows of one table."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._tables: list[tuple[tuple[Family, ...], SampleRows]] = []

    def add(self, samples: Iterable[Sample]) -> None:
        for family, value, given in samples:
            lines = self._of(family)
            lines.append(f"{family.name}{given} {_number(value)}\n")

    def table(self, *families: Family) -> SampleRows:
        """A list to append rows to: labels, then one number for each family. For thousands of
        rows: their text is made family by family at the end, which is cheaper."""
        rows: SampleRows = []
        self._tables.append((families, rows))
        return rows

    def add_histogram(
        self, family: Family, bounds: Sequence[float], counts: Sequence[int], total: float
    ) -> None:
        """`counts[i]` is the number of observations in [bounds[i-1], bounds[i]); the last count is
        that of observations above all bounds."""
        lines, seen = self._of(family), 0
        for bound, count in zip(bounds, counts, strict=False):
            seen += count
            lines.append(f'{family.name}_bucket{{le="{bound:.6g}"}} {seen}\n')
        observed = sum(counts)
        lines.append(f'{family.name}_bucket{{le="+Inf"}} {observed}\n')
        lines.append(f"{family.name}_sum {_number(total)}\n{family.name}_count {observed}\n")

    def _of(self, family: Family) -> list[str]:
        lines = self._lines.get(family.name)
        if lines is None:
            lines = self._lines[family.name] = [_head(family)]
        return lines

    def parts(self) -> Iterator[bytes]:
        """The text, family by family, in parts of at most ROWS_PER_PART rows."""
        for lines in self._lines.values():
            yield "".join(lines).encode()
        for families, rows in self._tables:
            if not rows:
                continue
            for column, family in enumerate(families, 1):
                yield _head(family).encode()
                name = family.name
                for first in range(0, len(rows), ROWS_PER_PART):
                    part = rows[first : first + ROWS_PER_PART]
                    yield "".join([f"{name}{row[0]} {row[column]}\n" for row in part]).encode()

    def text(self) -> bytes:
        return b"".join(self.parts())


def _head(family: Family) -> str:
    return f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"


def _number(value: float) -> str:
    if type(value) is int:
        return str(value)
    whole = int(value)
    return str(whole) if whole == value else repr(float(value))
