"""How much space the disk of the store has.

Owns: the reserve below which nothing is written, and the test whether the disk works at all.
May not touch: the database.
Spec: docs/decisions/0008-recovery-from-a-failed-disk.md. A database whose write has failed on a
full disk must be reopened; one that stops writing before that resumes when there is space again."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

_PROBE_BYTES: Final = 1 << 20


class DiskSpace:
    def __init__(self, path: Path, free_bytes_min: int) -> None:
        """`free_bytes_min`: see StoreTuning."""
        self._path = path
        self._free_bytes_min = free_bytes_min
        # Bytes that may be written before the next check.
        self.stride = 0 if free_bytes_min else 1 << 62

    def is_short(self, coming: int, *, last: bool = False) -> bool:
        """Whether the disk has no space for `coming` bytes and the reserve. Half of the reserve may
        be used for the `last` writes that were pending when the disk was found short."""
        if not self._free_bytes_min:
            return False
        disk = os.statvfs(self._path)
        reserve = min(self._free_bytes_min, disk.f_blocks * disk.f_frsize // 10)
        self.stride = reserve // 8
        return disk.f_bavail * disk.f_frsize < coming + (reserve // 2 if last else reserve)

    def probe(self) -> None:
        """Blocking. Raises OSError unless the disk can write and flush a file, and has space for
        what opening the database writes: the contents of the write-ahead log, and the reserve."""
        if self.is_short(sum(file.stat().st_size for file in self._path.glob("*.log"))):
            raise OSError(errno.ENOSPC, "not enough free space yet")
        probe_file = self._path / "probe"
        try:
            with probe_file.open("wb") as file:
                file.write(bytes(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe_file.unlink(missing_ok=True)
