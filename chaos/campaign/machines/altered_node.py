"""A real server process under altered conditions: `python -m chaos.campaign.machines.altered_node`.

Owns: what is replaced in this process before the server starts: the wall clock, the flushes of
files and, to prove that a campaign can fail, functions with a planted bug.
May not touch: how the server works otherwise; the server has no switch for any of this.
Arguments: the file with the conditions (conditions.py), which may change while the server runs; the
names of planted bugs (chaos/sim/bugs), comma-separated, or "-"; then those of `python -m broker`.
The server reads its wall clock through the module `time` and flushes its log through the module
`os`, or on a thread without the GIL, which is not used while flushes are altered. Flushes of the
database (RocksDB) are not altered: no promise depends on them."""

from __future__ import annotations

import errno
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chaos.campaign.machines.conditions import NORMAL, Conditions

LOOK_EVERY_S = 0.02


class ConditionsFile:
    """The current conditions. Reads the file again when the last read is old."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked = float("-inf")
        self._changed_ns = 0
        self._now = NORMAL

    def now(self) -> Conditions:
        at = time.monotonic()
        if at - self._looked > LOOK_EVERY_S:
            self._looked = at
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns != self._changed_ns:
                self._changed_ns = changed_ns
                self._now = Conditions.load(self._path)
        return self._now


def alter_clock(conditions: ConditionsFile) -> None:
    wall, wall_ns = time.time, time.time_ns
    time.time = lambda: wall() + conditions.now().clock_ahead_s
    time.time_ns = lambda: wall_ns() + int(conditions.now().clock_ahead_s * 1e9)


def alter_flushes(conditions: ConditionsFile) -> None:
    from raft.store.flush_thread import FlushThread

    request: Any = FlushThread.request

    def request_altered(thread: FlushThread) -> None:
        if conditions.now().normal_flushes:
            request(thread)
        else:
            thread._request_thread()  # noqa: SLF001 - as `request` does itself

    def altered(original: Any) -> Any:
        def flush(descriptor: int) -> None:
            found = conditions.now()
            if found.flush_takes_s:
                time.sleep(found.flush_takes_s)
            if found.flush_fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            original(descriptor)

        return flush

    setattr(FlushThread, "request", request_altered)  # noqa: B010 - replaced, not defined
    os.fsync, os.fdatasync = altered(os.fsync), altered(os.fdatasync)


def plant(names: list[str], until: ExitStack) -> None:
    from chaos.sim.broker.planted_bugs import BROKER_BUGS

    for name in names:
        until.enter_context(BROKER_BUGS[name].installed())


def main() -> int:
    _, path, bugs, *arguments = sys.argv
    conditions = ConditionsFile(Path(path))
    alter_clock(conditions)
    alter_flushes(conditions)
    with ExitStack() as until:
        plant([] if bugs == "-" else bugs.split(","), until)
        sys.argv = ["broker", *arguments]
        from broker.__main__ import run

        return run()


if __name__ == "__main__":
    sys.exit(main())
