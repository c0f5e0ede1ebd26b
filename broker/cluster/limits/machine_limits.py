"""Default storage limits of a server, as a share of the machine's memory and disk.

Owns: the rule, and reading the sizes of the machine.
May not touch: anything that runs.
Spec: nats-server, `max_memory_store` and `max_file_store`: -1 or unset means three quarters of the
memory, and of the free disk space at startup. 0 means no such storage. Unlike in nats-server, what
is already stored counts as free: otherwise a node that has used 45 % of its disk would refuse all
messages of the streams it leads after a restart."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from broker.config.options import JetStreamOptions

STORED_IN: Final = "jetstream"  # below store_dir
BLOCK_BYTES: Final = 512  # stat(2)
_UNITS: Final = ("B", "KB", "MB", "GB", "TB")


def with_machine_limits(
    options: JetStreamOptions, *, memory_bytes: int, free_bytes: int
) -> JetStreamOptions:
    """The options with both limits set."""
    return replace(
        options,
        max_memory_store=_limit(options.max_memory_store, memory_bytes),
        max_file_store=_limit(options.max_file_store, free_bytes),
    )


def unless_set(options: JetStreamOptions, measured: JetStreamOptions) -> JetStreamOptions:
    """The options, with the limits of `measured` where none are set."""
    found = {}
    for name in ("max_memory_store", "max_file_store"):
        configured = getattr(options, name)
        unset = configured is None or configured < 0
        found[name] = getattr(measured, name) if unset else configured
    return replace(options, **found)


def _limit(configured: int | None, there_is: int) -> int:
    return there_is * 3 // 4 if configured is None or configured < 0 else configured


def of_this_machine(options: JetStreamOptions) -> JetStreamOptions:
    """The options, with the limits of this machine where none are set."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    directory = Path(options.store_dir or tempfile.gettempdir()).absolute()
    stored = _taken_bytes(directory / STORED_IN)
    while not directory.exists():  # it will be created on the same disk
        directory = directory.parent
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    return with_machine_limits(options, memory_bytes=memory, free_bytes=free + stored)


def _taken_bytes(directory: Path) -> int:
    """On the disk, by all files below; 0 if there is no such directory."""
    taken = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):  # removed meanwhile
                taken += os.lstat(os.path.join(place, name)).st_blocks * BLOCK_BYTES
    return taken


def size_text(size: int) -> str:
    """As nats-server logs it."""
    power = min((max(size, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{size / 1024**power:.2f} {_UNITS[power]}" if power else f"{size} B"
