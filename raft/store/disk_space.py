"""How much room the disk of the store has.

Owns: the reserve below which nothing is written, and trying whether the disk works at all.
May not touch: the database.
Spec: decision 8. A database that has once met a full disk must be opened anew; one that stops
before goes on when space returns."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

_TRIAL_BYTES: Final = 1 << 20


class Room:
    def __init__(self, path: Path, free_bytes_min: int) -> None:
        """`free_bytes_min`: see StoreTuning."""
        self._path = path
        self._free_bytes_min = free_bytes_min
        self.stride = 0 if free_bytes_min else 1 << 62  # bytes that may be written unasked

    def is_short(self, coming: int, *, last: bool = False) -> bool:
        """Whether the disk has no room for `coming` bytes and the reserve; half of it is for the
        `last` that was under way when it was found short."""
        if not self._free_bytes_min:
            return False
        disk = os.statvfs(self._path)
        reserve = min(self._free_bytes_min, disk.f_blocks * disk.f_frsize // 10)
        self.stride = reserve // 8
        return disk.f_bavail * disk.f_frsize < coming + (reserve // 2 if last else reserve)

    def probe(self) -> None:
        """Blocking. Raises OSError unless the disk takes and flushes a file and has room for what
        opening the database writes: all that the write-ahead log holds, and the reserve."""
        if self.is_short(sum(file.stat().st_size for file in self._path.glob("*.log"))):
            raise OSError(errno.ENOSPC, "there is not enough room yet")
        trial = self._path / "probe"
        try:
            with trial.open("wb") as file:
                file.write(bytes(_TRIAL_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            trial.unlink(missing_ok=True)
