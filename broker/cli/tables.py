"""Formatting of tables, sizes and ages for the commands.

Owns: alignment and units.
May not touch: servers; it gets values and prints them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import click

from broker.server.process.printable import printable, printable_lines

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Columns as wide as their longest cell; numbers are aligned right, text left."""
    if not rows:
        click.echo(empty)
        return
    shown = [
        [f"{cell:,}" if isinstance(cell, int) else printable(str(cell)) for cell in row]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(headings, *shown, strict=True)]
    numeric = [isinstance(cell, int) for cell in rows[0]]

    def line(cells: Sequence[str]) -> str:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        )
        return "  ".join(aligned).rstrip()

    click.echo(line(headings))
    click.echo("  ".join("-" * width for width in widths))
    for row in shown:
        click.echo(line(row))


def show(line: str) -> None:
    """Print one line, whatever names a server put into it."""
    click.echo(printable(line))


class PrintedMessage(Protocol):
    @property
    def subject(self) -> str: ...
    @property
    def data(self) -> bytes: ...


def message_text(number: int, message: PrintedMessage) -> str:
    """One message. Whoever published it must not control the terminal that shows it."""
    data = printable_lines(message.data.decode(errors="replace"))
    return f"[{number}] {printable(message.subject)}: {data}"


def size(count: int) -> str:
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount /= 1024
        unit += 1
    return f"{count} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def age(seconds: float) -> str:
    """`3d4h`, `2m10s`, `1.50s`: the two largest units."""
    if seconds < 60:
        return f"{max(seconds, 0.0):.2f}s"
    whole = int(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"),
             (whole % 60, "s")]  # fmt: skip
    while not parts[0][0]:
        parts.pop(0)
    return "".join(f"{number}{unit}" for number, unit in parts[:2])
