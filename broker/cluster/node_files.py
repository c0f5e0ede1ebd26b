"""The small files of a node beside its database: read whole, replaced whole.

Owns: how such a file becomes durable. A crash leaves the old content or the new one.
May not touch: what the files mean."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class NodeFiles(Protocol):
    """Files by name. What `write` and `remove` did survives a crash once they have returned."""

    def read(self, name: str) -> bytes | None:
        """None: there is no such file."""

    def write(self, name: str, content: bytes) -> None: ...

    def remove(self, name: str) -> None: ...


class DirectoryFiles:
    """Files in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        path = self._directory / name
        partial = path.with_suffix(".new")
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        self._sync_directory()

    def remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)
        self._sync_directory()

    def _sync_directory(self) -> None:
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
