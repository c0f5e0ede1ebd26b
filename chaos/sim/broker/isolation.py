"""Isolates a simulated run from its process: log records, garbage collection, killed coroutines.

Owns: the loggers of the broker and the garbage collector while a run lasts.
May not touch: the run itself.
Spec: an error that the broker logs with an exception is a failure of the code under test. Garbage
is collected between runs only, so that no run depends on when that happens."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from chaos.sim.broker.marks import log_mark
from chaos.sim.world.database import is_injected
from chaos.sim.world.node_loop import NodeLoop

LOGGERS: Final = ("broker", "jetraft", "raft")
Failed = Callable[[str, dict[str, Any]], None]


class FailureLog(logging.Handler):
    def __init__(
        self, tell: Callable[[str], None] | None, mark: Callable[[str], None], failed: Failed
    ) -> None:
        super().__init__(logging.INFO)
        self._tell = tell
        self._mark = mark
        self._failed = failed

    def emit(self, record: logging.LogRecord) -> None:
        self._mark(log_mark(str(record.msg)))
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.levelno >= logging.ERROR and not is_injected(error):
            self._failed(record.name, {"message": record.getMessage(), "exception": error})
        elif self._tell is not None and (record.name != "broker" or record.levelno > logging.INFO):
            self._tell(record.getMessage())


@contextmanager
def isolated(
    loops: Sequence[NodeLoop],
    tell: Callable[[str], None] | None,
    mark: Callable[[str], None],
    failed: Failed,
) -> Iterator[None]:
    """`mark` gets the template of every log record. `loops` are killed at the end. Exceptions of
    coroutines of killed processes are ignored when they are freed: their `finally` blocks run
    without an event loop and raise."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(one.level, one.propagate) for one in loggers]
    handler = FailureLog(tell, mark, failed)
    for one in loggers:
        one.addHandler(handler)
        one.setLevel(logging.INFO)
        one.propagate = False
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for one, (level, propagate) in zip(loggers, before, strict=True):
            one.removeHandler(handler)
            one.setLevel(level)
            one.propagate = propagate
        if collected:
            gc.enable()


def keep_older_objects() -> None:
    """Exclude objects that exist before a run from its garbage collection, which would otherwise
    take a quarter of a run's time."""
    gc.freeze()


def free_garbage() -> None:
    """Collect what killed processes left, once nothing refers to their run any more."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):  # coroutines that were never awaited
            gc.collect()  # ends coroutines; what their `finally` blocks touch is left for another
            gc.collect()
    finally:
        gc.unfreeze()
        logging.disable(logging.NOTSET)
        sys.unraisablehook = hook
