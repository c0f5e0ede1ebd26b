"""What a node uses of the computer it runs on: links to peers, a database, a flush thread, files.

Owns: nothing. It names what is used, so that the simulator (chaos/sim) can run a whole node on a
simulated computer; broker/cluster/runtime.py gets the real one.
May not touch: how any of it is used. Time and random numbers are not here: every module takes
them from the standard library (`time.monotonic()`, `secrets.token_bytes()`, ...), by the name of
its module, where the simulator replaces them."""

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
    # A database that is damaged: it is not opened again, and makes place for another one.
    condemn: Callable[[LogStore], None] = LogStore.condemn
    set_aside: Callable[[Path], Path | None] = set_aside
    flush_thread: Callable[..., FlushThread] = FlushThread
    directory: Callable[[str], Path] = store_directory
    files: Callable[[Path], NodeFiles] = DirectoryFiles
    compaction: CompactionPolicy = CompactionPolicy()  # noqa: RUF009 - frozen
