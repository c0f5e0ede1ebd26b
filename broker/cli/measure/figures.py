"""Figures of a measurement: rates, percentiles, and a plot at a terminal.

Owns: how they are computed and shown.
May not touch: servers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from broker.cli.output.tables import at_terminal, show, show_json
from broker.cli.output.units import latency, size

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
PLOT_ROWS, PLOT_WIDTH = 8, 40


@dataclass(slots=True)
class Measurement:
    """One phase: how many operations in how much time, and the latencies of single ones."""

    name: str
    count: int
    seconds: float
    bytes: int = 0
    latencies: Sequence[float] = field(default_factory=tuple)  # sorted, in seconds


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank: the smallest value that so many percent do not exceed."""
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def report(found: Sequence[Measurement], *, as_json: bool) -> None:
    if as_json:
        show_json([_fields(one) for one in found])
        return
    for one in found:
        rate = f"{one.count / one.seconds:,.0f}/s"
        volume = f", {size(round(one.bytes / one.seconds))}/s" if one.bytes else ""
        show(f"{one.name}: {one.count:,} in {one.seconds:.2f} s, {rate}{volume}")
        if one.latencies:
            values = [
                *(f"p{percent:g} {latency(percentile(one.latencies, percent))}"
                  for percent in PERCENTILES),
                f"max {latency(one.latencies[-1])}",
            ]  # fmt: skip
            show(f"  latency: {', '.join(values)}")
            if at_terminal():
                _plot(one.latencies)


def _fields(one: Measurement) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": one.name, "count": one.count, "seconds": one.seconds,
        "per_second": one.count / one.seconds, "bytes": one.bytes,
    }  # fmt: skip
    if one.latencies:
        found["latency_seconds"] = {
            f"p{percent:g}": percentile(one.latencies, percent) for percent in PERCENTILES
        } | {"max": one.latencies[-1]}
    return found


def buckets(ordered: Sequence[float], rows: int) -> list[tuple[float, int]]:
    """Upper bounds that grow by a factor, and how many values are up to each of them."""
    low, high = max(ordered[0], 1e-9), max(ordered[-1], 1e-9)
    factor = (high / low) ** (1 / rows) if high > low else 1.0
    bounds = [low * factor ** (i + 1) for i in range(rows)]
    bounds[-1] = high
    counts = [0] * rows
    row = 0
    for value in ordered:
        while row < rows - 1 and value > bounds[row]:
            row += 1
        counts[row] += 1
    return list(zip(bounds, counts, strict=True))


def _plot(ordered: Sequence[float]) -> None:
    found = buckets(ordered, PLOT_ROWS)
    most = max(count for _, count in found)
    for bound, count in found:
        bar = "#" * math.ceil(PLOT_WIDTH * count / most)
        click.echo(f"  {latency(bound):>9} {bar} {count:,}")
