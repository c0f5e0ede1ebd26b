"""Commands that start servers: a request to end is an ordinary end, with everything put away.

Owns: the meaning of SIGTERM (and of Ctrl-C where the shell switched it off) while they run.
May not touch: the servers; context managers on the way out stop them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def end_by_signal() -> Iterator[None]:
    """Inside, both signals raise SystemExit, so that `finally` and `with` do their work."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # once is enough: the way out must not be cut off
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [(number, signal.signal(number, end)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
