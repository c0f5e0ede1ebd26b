"""Coverage marks: rare branches of the broker by name, and whether a run has reached them.

Owns: the names. They come from the broker itself: every message that its cluster and Raft code can
log, and the counters of rare events of a host; and from the kinds of faults.
May not touch: the broker; it is not instrumented.
Spec: a branch that no seed reaches is not tested by them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from chaos.sim.broker.fault_script import KINDS
from raft.host.statistics import HostStatistics

ROOT: Final = Path(__file__).resolve().parents[3]
LOGGING_ROOMS: Final = ("raft/host", "raft/snapshot", "broker/cluster")
LOGGING_CALLS: Final = ("info", "warning", "error", "critical")
COUNTED: Final = (
    "recoveries",
    "snapshots_sent",
    "snapshots_resumed",
    "snapshots_installed",
    "refused_writes",
    "late_ticks",
    "recovering",
    "refused_messages",
    "stray_messages",
)


def log_mark(template: str) -> str:
    return f"logged: {template}"


def host_marks(numbers: HostStatistics) -> Iterator[str]:
    """The rare events of this host since its start."""
    for name in COUNTED:
        if getattr(numbers, name):
            yield f"host: {name}"
    if numbers.awake < numbers.groups:
        yield "host: groups sleep"


@cache
def known_marks() -> frozenset[str]:
    found = {f"host: {name}" for name in (*COUNTED, "groups sleep")} | set(KINDS)
    for room in LOGGING_ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            found |= set(map(log_mark, _templates(ast.parse(path.read_text()))))
    return frozenset(found)


def _templates(module: ast.Module) -> Iterator[str]:
    for call in ast.walk(module):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in LOGGING_CALLS
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id in ("_log", "logger")
            and call.args
            and isinstance(call.args[0], ast.Constant)
        ):
            yield str(call.args[0].value)
