"""The directory of a node, and the small files in it: read whole, replaced whole.

Owns: where the directory is, how such a file becomes durable, and how a damaged database is set
aside. A crash leaves the old content or the new one.
May not touch: what the files mean, the database beside them."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Protocol

from broker.server.process.private_files import make_private
from broker.server.services import StartFailed

logger = logging.getLogger("jetraft.cluster")


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


def store_directory(configured: str) -> Path:
    """The directory of the data, created if it does not exist. Raises StartFailed."""
    if not configured:
        configured = str(Path(tempfile.gettempdir()) / "nats")
        logger.warning("Temporary storage directory used, data could be lost on system reboot")
    base = Path(configured)
    if base.exists() and not base.is_dir():
        raise StartFailed("Can't start JetStream: storage directory is not a directory")
    directory = base / "jetstream"
    try:
        if not make_private(directory):
            logger.warning(
                "%s is open to other users and does not belong to us: chmod 0700 it", directory
            )
        probe = directory / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        reason = f"could not create storage directory - {error}"
        raise StartFailed(f"Can't start JetStream: {reason}") from error
    return directory


def set_aside(path: Path) -> Path | None:
    """Rename the directory, or delete it if the disk has no space for a second one. Its new name is
    on disk when this returns. Only the newest one is kept, for what may be read from it; earlier
    ones are deleted, so that damage does not fill the disk."""
    earlier = sorted(path.parent.glob(f"{path.name}.damaged-*"), key=_number)
    for directory in earlier:
        shutil.rmtree(directory, ignore_errors=True)
    kept = path.with_name(f"{path.name}.damaged-{max(map(_number, earlier), default=0) + 1}")
    path.rename(kept)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    size = sum(file.stat().st_size for file in kept.rglob("*") if file.is_file())
    if shutil.disk_usage(path.parent).free >= size:
        return kept
    shutil.rmtree(kept, ignore_errors=True)
    return None


def _number(kept: Path) -> int:
    number = kept.name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0
