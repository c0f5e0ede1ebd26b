"""The Python processes of Spark in which a source runs: cheaper garbage collection between tasks.

Owns: nothing; it changes a setting of the interpreter, in such a process only.
May not touch: the process of the user, who imports the same modules.
Spec: the module pyspark.daemon. A worker is used for many tasks and plans, and looks for garbage
after each of them, among all objects of pyspark, pandas and pyarrow. A query that reads nothing has
at least three such processes at work, one after the other."""

from __future__ import annotations

import gc
import sys
from functools import cache
from typing import Final

_DAEMON: Final = "pyspark.daemon"  # the main module of a worker, which is a fork of it


@cache
def spare_loaded_modules() -> None:
    """What is loaded by now stays loaded: later collections look at newer objects only."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if getattr(spec, "name", "") == _DAEMON:
        gc.collect()
        gc.freeze()
