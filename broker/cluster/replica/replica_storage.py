"""What the Raft groups of this node have on disk.

Owns: opening the database, and reading from it whether a group's log is there or was lost.
May not touch: the content of logs (raft.store) and of states (broker.store).
Spec: docs/ARCHITECTURE.md, "Storage"."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from broker.cluster.block_moves import BlockMoves
from broker.cluster.meta.assignments import Assignment
from broker.cluster.platform import Platform
from broker.jetstream.config import Storage
from broker.server.services import StartFailed
from broker.store.encryption.key_file import EncryptionKeys, EncryptionRefused
from broker.store.sealed_blocks import SealedBlocks
from broker.store.segments import BlockCache
from broker.store.state_db import StateDb
from broker.store.values.value_files import ValueFiles
from raft import GroupId
from raft.store.log_store import LogStore, StoreTuning
from raft.store.records import DamagedDatabase, DamagedLog, StoreError, StoreFailed

if TYPE_CHECKING:
    from broker.store.encryption.directory_cipher import DirectoryCipher

logger = logging.getLogger("jetraft.cluster")


class StateDamaged(Exception):
    """The stored state of a stream cannot be read, or is inconsistent."""


@dataclass(slots=True)
class ReplicaStorage:
    """The database of this node: Raft logs, applied state, and a cache of decoded blocks."""

    store: LogStore
    state_db: StateDb
    block_cache: BlockCache
    block_moves: BlockMoves
    condemn: Callable[[LogStore], None]  # blocking: its database is not opened again

    @classmethod
    def open(
        cls,
        directory: Path,
        platform: Platform,
        *,
        node_name: str,
        cluster_name: str,
        flush_interval_s: float | None,
        rebuilt: bool,
        keys: EncryptionKeys = EncryptionKeys(),  # noqa: B008 - frozen
    ) -> ReplicaStorage:
        """`rebuilt`: there are peers to fetch everything from, so a damaged database is set aside,
        and this node starts again as a new incarnation. Raises raft.StoreError with a message for
        the operator."""
        cipher = _cipher(directory, keys, platform)
        opening = partial(
            platform.open_store,
            directory / "store",
            node_name=node_name,
            cluster_name=cluster_name,
            tuning=StoreTuning(flush_interval_s=flush_interval_s, cipher=cipher),
        )
        try:
            store: LogStore = opening()
        except DamagedDatabase as damage:
            if not rebuilt:
                raise StoreError(
                    f"the database is damaged ({damage}). Nothing was changed. This server has no "
                    "peers to fetch its streams from: restore a backup, or move the directory away "
                    "to begin with an empty one"
                ) from damage
            kept = platform.set_aside(directory / "store")
            logger.critical(
                "the database is damaged (%s): it is %s, and this node fetches its streams from "
                "its peers, as a new member. Streams with one replica are lost with it",
                damage,
                f"kept as {kept}" if kept else "deleted, because the disk has no space for both",
            )
            store = opening()
        place = store.values_place
        values = ValueFiles(place.files, file_bytes=place.file_bytes)
        try:
            state_db = StateDb(
                store.db,
                write=store.write_state,
                new_batch=store.new_batch,
                cipher=cipher,
                values=values,
                writer=SealedBlocks(values, store.keep_open),
            )
        except OSError as error:
            store.close()
            raise StoreError(f"the files of blocks cannot be listed: {error}") from error
        store.values = values
        store.attach(let_go=state_db.let_go, take=state_db.take)
        moves = BlockMoves(state_db, store.keep_open, lambda: store.full)
        return cls(store, state_db, BlockCache(), moves, platform.condemn)

    def failed(self, restart: Callable[[str], None], *, rebuilt: bool) -> None:
        """The store has failed. A damaged database file, found in a compaction, is handled like a
        database that cannot be opened, which requires a restart of the node. `rebuilt`: as for
        `open`."""
        if self.store.damage is None or not rebuilt:
            return
        try:
            self.condemn(self.store)
        except OSError as error:
            logger.critical("the database is damaged, and cannot be marked as such: %s", error)
            return
        restart("the database is damaged")

    @contextmanager
    def starting(self, restart: Callable[[str], None], *, rebuilt: bool) -> Iterator[None]:
        """Handles a failed store at startup, before the host can report it. Raises StartFailed."""
        try:
            yield
        except StoreFailed as error:
            self.failed(restart, rebuilt=rebuilt)
            raise StartFailed(f"Can't start JetStream: {error}") from error

    def lost_log(self, assignment: Assignment) -> bool:
        """Whether this node was a member and has lost its log since: by leaving the group, because
        the log was in memory, or because it is damaged. Then it needs a current list of members:
        with an old one it could conclude that all members have lost their logs, or that it is the
        only one, and start the group a second time."""
        group = GroupId(assignment.group)
        if not self.store.exists(group):
            return False
        if assignment.config.storage is Storage.MEMORY:
            return assignment.asked_ns > 0
        if self.damage(group) is not None:
            return True
        log = self.store.reader(group)
        return log.hard_state().lives % 2 == 1 and log.members_at(log.last_index()) is None

    def damage(self, group: GroupId) -> DamagedLog | None:
        """What is wrong with the log of this group, if something is."""
        try:
            self.store.reader(group)
        except DamagedLog as damage:
            return damage
        return None

    def give_up(self, group: GroupId) -> None:
        """Delete log and state. Term and vote of this node stay on disk, and so does the fact that
        the log was given up: if it joins the group again, it votes only after it has caught up.
        Raises DamagedLog if its promises are unknown."""
        self.store.give_up_log(group)
        self.wipe_state(group)

    def log_given_up(self, group: GroupId) -> bool:
        """Whether this node was a member of the group and has left it."""
        if not self.store.exists(group) or self.damage(group) is not None:
            return False
        log = self.store.reader(group)
        return log.hard_state().lives % 2 == 1 and log.last_index() == 0

    def wipe_state(self, group: GroupId) -> None:
        """Without reading it: it may be damaged."""
        self.state_db.wipe(group)
        self.block_cache.discard_group(group)


def _cipher(directory: Path, keys: EncryptionKeys, platform: Platform) -> DirectoryCipher | None:
    used = (directory / "store" / "CURRENT").exists()
    try:
        return platform.open_cipher(directory, keys, used=used)
    except (EncryptionRefused, OSError) as error:
        raise StoreError(str(error)) from error
