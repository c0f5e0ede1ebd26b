"""How much space the disk of the store has, and what may still be written to it.

Owns: the reserve, the levels of space above and below it, and the test whether the disk works.
May not touch: the database, the log.
Spec: docs/decisions/0023-a-full-disk.md. The reserve is the same percentage of every disk. Messages
are refused when free space is below the reserve. The reserve itself is for what is already
promised, and its last part for what frees space. A database whose write has failed on a full disk
must be reopened; one that stops writing before that resumes when there is space again."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

_PROBE_BYTES: Final = 1 << 20
_RESERVE_LEAST: Final = 16 << 20  # what is in flight when a disk fills up must fit
_TINY: Final = 4  # but not more than 1/4 of the disk
_SCARCE: Final = 8  # with less than 1/8 of the reserve left, nothing is written


class Space(IntEnum):
    """The level of free space, which determines what may be written."""

    NONE = 0  # nothing
    SCARCE = 1  # what frees space: purges, deletes, lower limits, log compaction
    SHORT = 2  # also small entries: acks, consumers, votes; and what was in flight
    AMPLE = 3  # messages


@dataclass(frozen=True, slots=True)
class DiskFacts:
    total_bytes: int
    free_bytes: int
    reserve_bytes: int  # 0: there is no bound

    def level(self, coming: int) -> Space:
        """The level after `coming` more bytes are written."""
        left = self.free_bytes - coming
        if left >= self.reserve_bytes or not self.reserve_bytes:
            return Space.AMPLE
        if left >= self.reserve_bytes // 2:
            return Space.SHORT
        return Space.SCARCE if left >= self.reserve_bytes // _SCARCE else Space.NONE


class DiskSpace:
    def __init__(self, path: Path, reserve_percent: int) -> None:
        """`reserve_percent`: see StoreTuning."""
        self._path = path
        self._reserve_percent = reserve_percent
        # Bytes that may be written before the next check.
        self.stride = 0 if reserve_percent else 1 << 62
        self.margin = 0  # a full disk counts as full until this much above the reserve is free

    def facts(self) -> DiskFacts:
        disk = os.statvfs(self._path)
        total = disk.f_blocks * disk.f_frsize
        reserve = 0
        if self._reserve_percent:
            reserve = max(total * self._reserve_percent // 100, min(_RESERVE_LEAST, total // _TINY))
            self.stride, self.margin = reserve // 8, reserve // 4
        return DiskFacts(total, disk.f_bavail * disk.f_frsize, reserve)

    def level(self, coming: int) -> Space:
        return self.facts().level(coming) if self._reserve_percent else Space.AMPLE

    def probe(self) -> None:
        """Blocking. Raises OSError unless the disk can write and flush a file, and has space for
        what opening the database writes: the contents of its write-ahead log."""
        logs = sum(file.stat().st_size for file in self._path.glob("*.log"))
        if self.level(logs) < Space.SHORT:
            raise OSError(errno.ENOSPC, "not enough free space yet")
        probe_file = self._path / "probe"
        try:
            with probe_file.open("wb") as file:
                file.write(bytes(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe_file.unlink(missing_ok=True)
