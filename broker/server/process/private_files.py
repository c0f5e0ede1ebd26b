"""File permissions: only the user of this process can read its files.

Owns: the umask of a server process, and tightening the modes that an earlier version left.
May not touch: what the files hold.
Spec: directories 0700, files 0600: data, logs, pid and ports files hold messages, subjects and
addresses. The umask also covers files that libraries create (RocksDB)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PRIVATE_UMASK = 0o077
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


def create_private_files() -> None:
    """From now on, every file that this process creates is for its user alone."""
    os.umask(PRIVATE_UMASK)


def write_private(path: Path, content: bytes) -> None:
    """Replace the content. A file that was readable for others no longer is, if it is ours."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        with suppress(PermissionError):  # the file of another user, prepared for us
            os.fchmod(descriptor, FILE_MODE)
        file.write(content)


def make_private(directory: Path) -> bool:
    """Create the directory and its parents with mode 0700; an existing directory gets that mode.
    False if it cannot, because the directory belongs to another user. Raises OSError."""
    directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    if directory.stat().st_mode & PRIVATE_UMASK:
        try:
            directory.chmod(DIRECTORY_MODE)
        except PermissionError:
            return False
    return True
