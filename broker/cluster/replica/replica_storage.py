"""What the Raft groups of this node have on disk.

Owns: opening the database, and reading from it whether a group's log is there or was lost.
May not touch: the content of logs (raft.store) and of states (broker.store).
Spec: docs/ARCHITECTURE.md, "Storage"."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from broker.cluster.meta.assignments import Assignment
from broker.jetstream.config import Storage
from broker.store.segments import BlockCache
from broker.store.state_db import StateDb
from raft import GroupId
from raft.store.log_store import LogStore, StoreTuning
from raft.store.records import DamagedDatabase, DamagedLog, StoreError

logger = logging.getLogger("jetraft.cluster")


class StateDamaged(Exception):
    """What this node has stored of a stream cannot be read, or contradicts itself."""


@dataclass(slots=True)
class ReplicaStorage:
    """The database of this node: Raft logs, applied state, and a cache of decoded blocks."""

    store: LogStore
    state_db: StateDb
    block_cache: BlockCache

    @classmethod
    def open(
        cls,
        directory: Path,
        open_store: Callable[..., LogStore],
        *,
        node_name: str,
        cluster_name: str,
        flush_interval_s: float | None,
        rebuilt: bool,
    ) -> ReplicaStorage:
        """`rebuilt`: there are peers to fetch everything from, so a damaged database is set aside,
        and this node begins again, as a new incarnation. Raises raft.StoreError with a sentence for
        the operator."""
        opening = partial(
            open_store,
            directory / "store",
            node_name=node_name,
            cluster_name=cluster_name,
            tuning=StoreTuning(flush_interval_s=flush_interval_s),
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
            kept = _set_aside(directory / "store")
            logger.critical(
                "the database is damaged (%s): it is kept as %s, and this node fetches its streams "
                "from its peers, as a new member. Streams with one replica are lost with it",
                damage,
                kept,
            )
            store = opening()
        state_db = StateDb(store.db, write=store.write_state, new_batch=store.new_batch)
        store.attach(let_go=state_db.let_go, take=state_db.take)
        return cls(store, state_db, BlockCache())

    def lost_log(self, assignment: Assignment) -> bool:
        """Whether this node was a member and has lost its log since: by leaving the group, because
        the log was in memory, or because it is damaged. Then its list of members must not be
        outdated: with an old one it could conclude that all members have lost their logs, or that
        it is the only one, and start the group a second time."""
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
        """Delete log and state. The promises of this node, its term and vote, stay on disk, and so
        does the fact that the log was given up: if it joins the group again, it votes only after it
        has caught up. Raises DamagedLog if what it promised is not known."""
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


def _set_aside(path: Path) -> Path:
    """Rename the directory. Its new name is on disk when this returns."""
    number = 1
    while (kept := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(kept)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return kept
