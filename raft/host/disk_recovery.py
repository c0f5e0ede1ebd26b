"""Back to work after the disk has failed, without a restart.

Owns: when a failed store is tried again, and what must hold before it is.
May not touch: groups and machines (the host lets go of them, the application makes them anew).
Spec: a flush that failed says nothing about what is on the disk, and the next one that succeeds
says nothing about what the failed one left out: the kernel may have dropped the pages. So nothing
is flushed again in the hope that it works now. The store is opened anew as after a crash: what the
write-ahead log still shows is written to new files and flushed before any group sees it, and every
group begins from there. What was not confirmed was not promised, so it may be there or not. Groups
whose log is in memory go on meanwhile, but for votes and new terms, which are written again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from raft.host.group import Group
from raft.host.rounds import Rounds
from raft.store.log_store import LogStore
from raft.store.records import StoreError
from raft.types import GroupId

_log = logging.getLogger("raft.recovery")
_FIRST_SECONDS: Final = 0.25
_LAST_SECONDS: Final = 4.0  # between two attempts


class Recovery:
    def __init__(self, *, store: LogStore, rounds: Rounds, groups: Mapping[GroupId, Group]) -> None:
        self.count = 0
        self._store = store
        self._rounds = rounds
        self._groups = groups

    async def run(self, resume: Callable[[], None]) -> None:
        """Try until the store is open again, then `resume` in the same step of the loop: nobody
        reads in between. Opening holds up the loop while the write-ahead log is read."""
        loop = asyncio.get_running_loop()
        delay, complaint = _FIRST_SECONDS, ""
        while True:
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LAST_SECONDS)
            try:
                await loop.run_in_executor(None, self._store.probe)
                if self._in_use():
                    continue
                self._store.reopen()
            except (OSError, StoreError) as error:
                if str(error) != complaint:
                    complaint = str(error)
                    _log.warning("the store is not usable yet, trying again: %s", error)
                continue
            self.count += 1
            resume()
            return

    def _in_use(self) -> bool:
        """A flush under way will end, and so will an installation: its next write is refused."""
        return self._rounds.flushing or any(group.installing for group in self._groups.values())
