"""Large values of the state, which are in files next to the database.

Owns: the interface between the store and the owner of the values, and the directory of the files.
May not touch: the files.
Spec: docs/decisions/0038-block-files.md. A file is removed after a flush of the database that began
when nothing in the database referred to the file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raft.store.segments.files import DiskFiles, LogFiles


class LargeValues(Protocol):
    @property
    def living_bytes(self) -> int: ...

    def doomed(self) -> list[int]:
        """Files that may be removed once the database, as it is now, is on disk."""

    def remove(self, doomed: Iterable[int]) -> None:
        """Remove these files: the database was flushed after `doomed` returned them."""


class NoLargeValues:
    living_bytes = 0

    def doomed(self) -> list[int]:
        return []

    def remove(self, doomed: Iterable[int]) -> None:
        """There are none."""


@dataclass(frozen=True, slots=True)
class ValuesPlace:
    """For the owner of the values: the directory, and the size of a file."""

    files: LogFiles
    file_bytes: int

    @classmethod
    def of(cls, files: LogFiles | None, path: Path, file_bytes: int) -> ValuesPlace:
        """On the real disk, unless `files` of a simulated one are given."""
        return cls(files or DiskFiles(path), file_bytes)
