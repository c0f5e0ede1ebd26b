"""Ctrl-C in the middle of a transfer: at the next step, so that what was begun can be taken back.

Owns: the handlers of SIGINT and SIGTERM while such a command runs.
May not touch: the transfer."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def end_between_steps() -> Iterator[Callable[[], None]]:
    """The work calls what it gets between two steps; a signal that came raises there, and not in
    the middle of a write to the connection. A second signal does not wait."""
    received: list[int] = []

    def end() -> None:
        if received:
            raise KeyboardInterrupt if received[0] == signal.SIGINT else SystemExit(143)

    def note(number: int, _: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            end()

    before = [(number, signal.signal(number, note)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield end
    finally:
        for number, handler in before:
            signal.signal(number, handler)
