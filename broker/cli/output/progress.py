"""A progress bar at a terminal, nothing elsewhere.

Owns: when a bar is shown.
May not touch: what advances it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Call what it gives with every step. No bar if the total is 0."""
    if not total or not sys.stderr.isatty() or not sys.stdout.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(transient=True, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        pending = [0]

        def advance(count: int) -> None:
            pending[0] += count
            if pending[0] >= max(total // 500, 1):
                bar.advance(task, pending[0])
                pending[0] = 0

        yield advance
