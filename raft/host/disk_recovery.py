"""Recovery from a failed or full disk: the node stops acknowledging, and resumes without a restart.

Owns: whether the disk works, when a failed store is tried again, and what must hold before it is.
May not touch: what groups do meanwhile (the table stops them; the application adds them again).
Spec: after a failed flush it is unknown what is on disk, and a later flush that succeeds does not
cover what the failed one missed: the kernel may have dropped those pages. So a failed flush is
never retried. The store is reopened as after a crash: what the write-ahead log still shows is
written to new files and flushed before any group sees it, and every group starts from there.
Writes that were not confirmed were not promised either, so they may be lost. Groups whose log is in
memory keep running meanwhile, except for votes and new terms, which are written again. A full disk
is detected before a write of the database fails (raft/store/disk_space.py), so that the store does
not have to be reopened.
A database cannot be reopened while an object of this process still refers to the old one. Recovery
drops accidental references: the traceback frames of the error, and garbage that was not collected
yet. A reference that remains after that will never go away, so the process is then restarted."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Final, Protocol

from raft.host.group_table import GroupTable
from raft.store.log_store import LogStore
from raft.store.records import StoreError, StoreHeld
from raft.types import GroupId

_log = logging.getLogger("raft.recovery")
_RETRY_FIRST_SECONDS: Final = 0.25
_RETRY_LAST_SECONDS: Final = 4.0
_HELD_MAX: Final = 4  # attempts while the old database is still open; a reader may end meanwhile


class RestartableRounds(Protocol):
    """The rounds, as far as recovery uses them."""

    @property
    def flushing(self) -> bool: ...

    def restart(self) -> None: ...


class DiskRecovery:
    """Its task lives in the TaskGroup of the host's run(), between `open` and `close`."""

    def __init__(
        self,
        *,
        store: LogStore,
        groups: GroupTable,
        remove: Callable[[GroupId], None],
        on_failure: Callable[[BaseException], None] | None,
        on_recovered: Callable[[], None] | None,
    ) -> None:
        """`remove` takes a group out of the host. The other callbacks: see Host."""
        self.failure: BaseException | None = None
        self.count = 0  # recoveries
        self._store = store
        self._groups = groups
        self._remove = remove
        self._on_failure = on_failure
        self._on_recovered = on_recovered
        self._logged = ""  # the last log message about disk space
        self._rounds: RestartableRounds | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self, rounds: RestartableRounds, tasks: asyncio.TaskGroup) -> None:
        self._rounds, self._tasks = rounds, tasks

    def close(self) -> None:
        self._tasks = None
        if self._task is not None:
            self._task.cancel()

    def trouble(self) -> str | None:
        """Why this node cannot acknowledge anything, if so."""
        return self._store.trouble() if self.failure is None else str(self.failure)

    def in_need(self) -> bool:
        """Whether space should be freed soon."""
        return self._store.in_need

    def is_exhausted(self) -> bool:
        """Whether the disk has no space for anything. Such a node acknowledges nothing, so that
        others lead, and resumes when there is space again."""
        self._store.check_space()
        exhausted = self._store.exhausted
        state = "exhausted" if exhausted else "full" if self._store.full else ""
        if state != self._logged:
            self._logged = state
            match state:
                case "exhausted":
                    _log.critical(
                        "the disk is full: this node acknowledges nothing until it has space"
                    )
                case "full":
                    _log.error(
                        "the disk is full: no messages are stored; purges, deletes and lower "
                        "limits free space"
                    )
                case _:
                    _log.warning("the disk has space again: this node resumes")
        return exhausted

    def failed(self, error: BaseException) -> None:
        """The disk has failed: this node can promise nothing. Every group stops, so that the other
        nodes elect leaders, except groups with their logs in memory: they run until they have to
        vote."""
        if self.failure is not None:
            return
        self.failure = error
        _log.critical("the disk has failed, this node stops acknowledging", exc_info=error)
        self._groups.stop_persistent(f"the disk has failed: {error}")
        if self._on_failure is not None:
            self._on_failure(error)
        if self._on_recovered is not None and self._tasks is not None:
            self._task = self._tasks.create_task(self._recover(), name="recovery of the store")

    async def _recover(self) -> None:
        """Retry until the store is open again, then resume without an await, so that no other code
        reads in between. Opening blocks the loop while the write-ahead log is read."""
        loop = asyncio.get_running_loop()
        delay, logged, held = _RETRY_FIRST_SECONDS, "", 0
        while True:
            await asyncio.sleep(delay)
            delay = min(2 * delay, _RETRY_LAST_SECONDS)
            try:
                await loop.run_in_executor(None, self._store.probe)
                if self._in_use():
                    continue
                for error in (self.failure, self._store.failure):
                    _let_go_of_frames(error)
                if held:
                    gc.collect()
                self._store.reopen()
            except (OSError, StoreError) as error:
                held += isinstance(error, StoreHeld)
                if held == _HELD_MAX:
                    message = "the store cannot be opened again in this process"
                    loop.call_exception_handler({"message": message, "exception": error})
                if str(error) != logged:
                    logged = str(error)
                    _log.warning("the store is not usable yet, will retry: %s", error)
                continue
            self.count += 1
            self._resume()
            return

    def _in_use(self) -> bool:
        """Whether a flush or the installation of a snapshot is in progress. Both will end: the
        next write of an installation is refused."""
        assert self._rounds is not None
        return self._rounds.flushing or any(g.installing for g in self._groups.groups.values())

    def _resume(self) -> None:
        """The store is open again: as after a crash, except for groups in memory."""
        self.failure = self._task = None
        for group in list(self._groups.groups.values()):
            if group.persistent:
                self._remove(group.id)
        assert self._rounds is not None
        self._rounds.restart()
        _log.warning("the disk works again: this node resumes from the data on it")
        assert self._on_recovered is not None
        try:
            self._on_recovered()
        except Exception as error:  # noqa: BLE001 - the node stops acknowledging again
            self.failed(error)


def _let_go_of_frames(error: BaseException | None) -> None:
    """Clear the traceback frames: their variables refer to batches, and those to the database."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
