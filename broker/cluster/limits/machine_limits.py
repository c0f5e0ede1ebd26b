"""What a server may store when its configuration does not say so: a share of the machine.

Owns: the rule, and reading the sizes of the machine.
May not touch: anything that runs.
Spec: nats-server, `max_memory_store` and `max_file_store`: -1 or nothing is three quarters of the
memory, and of the space that is free on the disk at the start. 0 means no such storage."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from broker.config.options import JetStreamOptions

_UNITS: Final = ("B", "KB", "MB", "GB", "TB")


def with_machine_limits(
    options: JetStreamOptions, *, memory_bytes: int, free_bytes: int
) -> JetStreamOptions:
    """The same options with both limits set."""
    return replace(
        options,
        max_memory_store=_limit(options.max_memory_store, memory_bytes),
        max_file_store=_limit(options.max_file_store, free_bytes),
    )


def unless_set(options: JetStreamOptions, measured: JetStreamOptions) -> JetStreamOptions:
    """The same options, with the limits of `measured` where there are none."""
    found = {}
    for name in ("max_memory_store", "max_file_store"):
        configured = getattr(options, name)
        unset = configured is None or configured < 0
        found[name] = getattr(measured, name) if unset else configured
    return replace(options, **found)


def _limit(configured: int | None, there_is: int) -> int:
    return there_is * 3 // 4 if configured is None or configured < 0 else configured


def of_this_machine(options: JetStreamOptions) -> JetStreamOptions:
    """The same options with the limits of this machine, where there are none."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    directory = Path(options.store_dir or tempfile.gettempdir()).absolute()
    while not directory.exists():  # it will be created on the same disk
        directory = directory.parent
    disk = os.statvfs(directory)
    return with_machine_limits(
        options, memory_bytes=memory, free_bytes=disk.f_bavail * disk.f_frsize
    )


def size_text(size: int) -> str:
    """As nats-server logs it."""
    power = min((max(size, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{size / 1024**power:.2f} {_UNITS[power]}" if power else f"{size} B"
