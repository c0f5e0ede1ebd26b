"""For commands that start servers: SIGTERM and Ctrl-C end them cleanly, with the servers stopped.

Owns: the handlers of SIGTERM and SIGINT while such a command runs.
May not touch: the servers; context managers stop them while the exception passes through."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def end_by_signal() -> Iterator[None]:
    """Inside, both signals raise SystemExit, so that `finally` and `with` blocks run."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [(number, signal.signal(number, end)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
