"""Tables, lines and JSON of the commands.

Owns: alignment, and that nothing of a server acts on the terminal.
May not touch: servers; it gets values and prints them.
A table that is wider than the terminal is printed as one block per row."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any

import click

from broker.server.process.printable import printable

json_option: Callable[..., Any] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON."
)


def at_terminal() -> bool:
    """Whether a person reads the output."""
    return sys.stdout.isatty()


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
    if at_terminal() and sum(widths) + 2 * len(widths) - 2 > shutil.get_terminal_size().columns:
        _blocks(headings, shown)
        return

    def line(cells: Sequence[str]) -> str:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        )
        return "  ".join(aligned).rstrip()

    click.echo(click.style(line(headings), bold=True))  # click removes it elsewhere
    click.echo("  ".join("-" * width for width in widths))
    for row in shown:
        click.echo(line(row))


def _blocks(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    width = max(map(len, headings))
    for row in rows:
        click.echo(click.style(row[0], bold=True))
        for heading, cell in zip(headings[1:], row[1:], strict=True):
            if cell:
                click.echo(f"  {heading.ljust(width)}  {cell}")


def show(line: str) -> None:
    """Print one line, whatever names a server put into it."""
    click.echo(printable(line))


def facts(title: str, pairs: Iterable[tuple[str, object]]) -> None:
    """A heading and aligned pairs below it; those without a value are left out."""
    click.echo(click.style(printable(title), bold=True))
    known = [(name, value) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        text = f"{value:,}" if isinstance(value, int) else str(value)
        show(f"  {name.ljust(width)}  {text}")


def show_json(value: object) -> None:
    """ASCII only: no control character can get through."""
    click.echo(json.dumps(value, indent=2))


def show_json_line(value: object, file: IO[str] | None = None) -> None:
    """One of many, each in a line of its own."""
    click.echo(json.dumps(value, separators=(",", ":")), file=file)
