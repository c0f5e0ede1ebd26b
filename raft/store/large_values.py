"""Large values of the state that are in files beside the database.

Owns: what a store asks of their owner, and where their files are.
May not touch: the files.
Spec: docs/decisions/0038-block-files.md. A file goes after a flush of the database that began when
nothing in the database referred to it."""

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
        """Files that may go when the database, as it is now, is on disk."""

    def remove(self, doomed: Iterable[int]) -> None:
        """The database was flushed after `doomed`."""


class NoLargeValues:
    living_bytes = 0

    def doomed(self) -> list[int]:
        return []

    def remove(self, doomed: Iterable[int]) -> None:
        """There are none."""


@dataclass(frozen=True, slots=True)
class ValuesPlace:
    """For the owner of the values: the directory, and how large a file becomes."""

    files: LogFiles
    file_bytes: int

    @classmethod
    def of(cls, files: LogFiles | None, path: Path, file_bytes: int) -> ValuesPlace:
        """On the disk, unless there are `files` of a simulated one."""
        return cls(files or DiskFiles(path), file_bytes)
