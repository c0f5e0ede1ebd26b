"""File access of the log: the interface to a file system, and its implementation on real files.

Owns: the calls to the operating system, all of which release the GIL.
May not touch: what is in the files.
Spec: docs/decisions/0019-a-log-of-our-own.md. chaos/sim/files.py implements the same interface on a
simulated disk, with crashes and faults."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

_PARTS_MAX: Final = 512  # buffers in one pwritev; the kernel's limit is 1024


class LogFile(Protocol):
    """One open file. Every call may raise OSError; a call that raised may have done any part of
    its work."""

    @property
    def size(self) -> int: ...

    def write(self, parts: Sequence[bytes | memoryview], offset: int) -> None:
        """Write all parts one after the other, starting at `offset`."""

    def read(self, size: int, offset: int) -> bytes:
        """Returns fewer bytes at the end of the file."""

    def read_into(self, memory: memoryview, offset: int) -> int:
        """Like `read`, into the caller's memory; returns the number of bytes read."""

    def allocate(self, size: int) -> None:
        """Allocate this many bytes, so that later writes into the file need no more space."""

    def sync(self) -> None:
        """fdatasync: what was written and allocated before is on disk."""

    def close(self) -> None: ...


class LogFiles(Protocol):
    """One directory."""

    def names(self) -> list[str]: ...

    def open(self, name: str) -> LogFile: ...

    def create(self, name: str) -> LogFile:
        """A new, empty file; an existing one of this name is emptied."""

    def rename(self, name: str, to: str) -> None: ...

    def remove(self, name: str) -> None: ...

    def sync_names(self) -> None:
        """Sync the directory: earlier creations, renames and removals are on disk."""


class DiskFile:
    """A LogFile of the operating system."""

    __slots__ = ("descriptor",)

    def __init__(self, path: Path, flags: int) -> None:
        self.descriptor = os.open(path, flags | os.O_RDWR | os.O_CLOEXEC, 0o600)

    @property
    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def write(self, parts: Sequence[bytes | memoryview], offset: int) -> None:
        for start in range(0, len(parts), _PARTS_MAX):
            some = parts[start : start + _PARTS_MAX]
            wanted = sum(map(len, some))
            written = os.pwritev(self.descriptor, some, offset)
            if written != wanted:  # a signal, or a disk that is nearly full: write the rest
                rest = memoryview(b"".join(some))[written:]
                while rest:
                    rest = rest[os.pwrite(self.descriptor, rest, offset + wanted - len(rest)) :]
            offset += wanted

    def read(self, size: int, offset: int) -> bytes:
        found = os.pread(self.descriptor, size, offset)
        while found and len(found) < size:
            more = os.pread(self.descriptor, size - len(found), offset + len(found))
            if not more:
                break
            found += more
        return found

    def read_into(self, memory: memoryview, offset: int) -> int:
        have = 0
        while have < len(memory):
            found = os.preadv(self.descriptor, [memory[have:]], offset + have)
            if not found:
                break
            have += found
        return have

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self.descriptor, 0, size)

    def sync(self) -> None:
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


def descriptors_of(files: Sequence[LogFile]) -> list[int] | None:
    """File descriptors, for the sync thread. None if any is not a real file."""
    found = [file.descriptor for file in files if isinstance(file, DiskFile)]
    return found if len(found) == len(files) else None


class DiskFiles:
    """The LogFiles of a directory, which is created if it does not exist."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.exists():
            path.mkdir(mode=0o700, parents=True)
            _sync_directory(path.parent)

    def names(self) -> list[str]:
        return sorted(os.listdir(self._path))

    def open(self, name: str) -> LogFile:
        return DiskFile(self._path / name, 0)

    def create(self, name: str) -> LogFile:
        return DiskFile(self._path / name, os.O_CREAT | os.O_TRUNC)

    def rename(self, name: str, to: str) -> None:
        os.rename(self._path / name, self._path / to)

    def remove(self, name: str) -> None:
        os.unlink(self._path / name)

    def sync_names(self) -> None:
        _sync_directory(self._path)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
