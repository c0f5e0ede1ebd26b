"""Metric families and samples, and their Prometheus text form.

Owns: the types in which the parts of a node report metrics, and their text form.
May not touch: where the values come from.
Spec: Prometheus text exposition format 0.0.4: the samples of a family stand together, under one
HELP and one TYPE line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple


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
    pairs = (f'{name}="{_escaped(value)}"' for name, value in given.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    if '"' not in value and "\\" not in value and "\n" not in value:
        return value
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Exposition:
    """Collects samples in any order; `text` has them family by family."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self.samples = 0

    def add(self, samples: Iterable[Sample]) -> None:
        for family, value, given in samples:
            lines = self._of(family)
            lines.append(f"{family.name}{given} {_number(value)}\n")
            self.samples += 1

    def add_row(self, families: Sequence[Family], values: Sequence[float], given: str) -> None:
        """One value of each family, all with the same labels: cheaper than single samples."""
        for family, value in zip(families, values, strict=True):
            self._of(family).append(f"{family.name}{given} {_number(value)}\n")
        self.samples += len(families)

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
        self.samples += len(bounds) + 3

    def _of(self, family: Family) -> list[str]:
        lines = self._lines.get(family.name)
        if lines is None:
            head = f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
            lines = self._lines[family.name] = [head]
        return lines

    def parts(self) -> Iterator[bytes]:
        """The text, family by family."""
        for lines in self._lines.values():
            yield "".join(lines).encode()

    def text(self) -> bytes:
        return b"".join(self.parts())


def _number(value: float) -> str:
    if type(value) is int:
        return str(value)
    whole = int(value)
    return str(whole) if whole == value else repr(float(value))
