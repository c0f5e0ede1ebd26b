"""Work that may take long, cut into steps: a generator that yields between two of them.

Owns: the type of such work, and running all of it in one call.
May not touch: how steps are scheduled (broker/server/routing/fair_queue.py).
A pure function that may have to check 100,000 subjects returns its result from a generator. The
event loop then runs some steps per turn; a test or an offline caller runs all of them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
STEP_ITEMS = 64  # items of a list that make one step


class TooManySteps(Exception):
    """The work was abandoned."""


def finish(steps: Steps[T], *, most: int | None = None) -> T:
    """Run all steps now. Raises TooManySteps if there are more than `most`."""
    count = 0
    while most is None or count <= most:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        count += 1
    steps.close()
    raise TooManySteps
