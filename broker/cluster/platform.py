"""What a node uses of its machine: links to peers, a database, a flush thread, files.

Owns: nothing. It lists what is used, so that the simulator (chaos/sim) can run a whole node on a
simulated machine; broker/cluster/runtime.py uses the real one.
May not touch: how any of it is used. Time and random numbers are not here: every module calls them
through the module of the standard library (`time.monotonic()`, `secrets.token_bytes()`, ...), where
the simulator replaces them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from broker.cluster.node_files import DirectoryFiles, NodeFiles, set_aside, store_directory
from broker.store.encryption.key_file import open_directory
from raft.host.compaction import CompactionPolicy
from raft.store.flush_thread import FlushThread
from raft.store.log_store import LogStore
from raft.transport.transport import Transport

if TYPE_CHECKING:
    from broker.store.encryption.directory_cipher import DirectoryCipher


@dataclass(frozen=True, slots=True)
class Platform:
    transport: Callable[..., Transport] = Transport  # raft/transport: the links to other nodes
    open_store: Callable[..., LogStore] = LogStore.open
    open_cipher: Callable[..., DirectoryCipher | None] = open_directory
    # For a damaged database: mark it so that it is not opened again, and move it out of the way.
    condemn: Callable[[LogStore], None] = LogStore.condemn
    set_aside: Callable[[Path], Path | None] = set_aside
    flush_thread: Callable[..., FlushThread] = FlushThread
    directory: Callable[[str], Path] = store_directory
    files: Callable[[Path], NodeFiles] = DirectoryFiles
    compaction: CompactionPolicy = CompactionPolicy()  # noqa: RUF009 - frozen
