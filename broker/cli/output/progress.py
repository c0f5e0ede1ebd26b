"""How far a command is: a progress bar at a terminal; elsewhere a line now and then, or nothing.

Owns: when something is shown.
May not touch: what advances it."""

from __future__ import annotations

import sys
import time
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


LINE_EVERY_S = 15.0


@contextmanager
def progress_told(done: str, total: int) -> Iterator[Callable[[int], None]]:
    """For work of minutes. Call what it gives with how many are done; without a terminal, a line
    says so every 15 seconds."""
    if sys.stderr.isatty() and sys.stdout.isatty():
        shown = 0
        with progress_bar(done, total) as advance:

            def show(count: int) -> None:
                nonlocal shown
                advance(count - shown)
                shown = count

            yield show
        return
    told_at = time.monotonic()

    def tell(count: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= LINE_EVERY_S:
            told_at = time.monotonic()
            sys.stderr.write(f"{done} {count:,} of {total:,}\n")
            sys.stderr.flush()

    yield tell
