"""The scrub: reads everything that this node has stored, slowly, and reports what is damaged.

Owns: when a pass is due, how fast it reads, and the time of the last pass on disk.
May not touch: what happens to a damaged stream (replica/membership.py).
Damage to data that is never read would go unnoticed until the other replicas are damaged too. A
pass reads one block or one entry at a time, and pauses after each, so that it uses a bounded share
of the disk bandwidth and of CPU time. Blocks are rarely in the page cache, so they are read on a
worker thread. Entries are recent, and reading them holds the lock of the log: they are read on the
loop.
Spec: docs/decisions/0025-damage-heals-itself.md."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from broker.cluster.node_files import NodeFiles
from broker.store.block.codec import Block, BlockDamaged
from broker.store.segments import Segment
from raft import Entry, Index
from raft.store.records import DamagedLog, StoreError

logger = logging.getLogger("jetraft.cluster")

SCRUBBED_FILE: Final = "scrubbed"  # the time of the end of the last pass
BYTES_PER_SECOND: Final = 8 << 20
RECORD_BYTES: Final = 4 << 10  # each record counts as at least this much
LOOK_EVERY_S: Final = 600.0


class ScrubbedSegments(Protocol):
    def from_seq(self, seq: int) -> Iterator[Segment]: ...

    def read_block(self, first_seq: int) -> Block:
        """Raises BlockDamaged, after reporting the damage to the owner of the data."""

    def try_block(self, first_seq: int) -> int | None:
        """The size of a block, or None if it could not be read. May run on any thread; does not
        report damage."""


class ScrubbedLog(Protocol):
    def first_index(self) -> Index: ...
    def last_index(self) -> Index: ...
    def entries(self, low: Index, high: Index, max_bytes: int) -> list[Entry]: ...


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """What one replica has on disk. `is_open` becomes false when the replica is gone."""

    group: int
    segments: ScrubbedSegments
    log: ScrubbedLog
    is_open: Callable[[], bool]


@dataclass(slots=True)
class Scrub:
    """One per node; `run` is its task."""

    files: NodeFiles
    replicas: Callable[[], Iterable[Scrubbed]]  # those with storage on disk
    damaged: Callable[[int, Exception], None]  # of a group: its log
    now_ns: Callable[[], int]
    interval_ns: int  # from the end of a pass to the next; 0: never
    keep_open: Callable[[], AbstractContextManager[None]]  # the database, for a thread that reads

    async def run(self) -> None:
        while self.interval_ns:
            due_ns = self._last_ns() + self.interval_ns - self.now_ns()
            if due_ns > 0:
                await asyncio.sleep(min(due_ns / 1e9, LOOK_EVERY_S))
                continue
            read = await self.once()
            self.files.write(SCRUBBED_FILE, str(self.now_ns()).encode())
            logger.info("scrub: %d MB of stored data were read and checked", read >> 20)

    def _last_ns(self) -> int:
        """The end of the last pass. A new node has nothing to check yet; a damaged file counts as
        missing."""
        raw = self.files.read(SCRUBBED_FILE)
        if raw is None or not raw.isdigit():
            self.files.write(SCRUBBED_FILE, str(self.now_ns()).encode())
            return self.now_ns()
        return min(int(raw), self.now_ns())

    async def once(self) -> int:
        """One pass over everything. Returns the bytes read."""
        read = 0
        for replica in self.replicas():
            read += await self._blocks(replica) + await self._entries(replica)
        return read

    async def _blocks(self, replica: Scrubbed) -> int:
        read = seq = 0
        while replica.is_open():
            segment = next((s for s in replica.segments.from_seq(seq) if s.last_seq >= seq), None)
            if segment is None:
                break
            seq = segment.last_seq + 1
            if segment.view is not None:
                continue  # not on disk yet
            size = await asyncio.to_thread(self._try, replica, segment.first_seq)
            if size is None:
                try:
                    size = self._again(replica, segment)
                except BlockDamaged as damage:
                    logger.debug("scrub: group %d: %s", replica.group, damage)  # the owner logs it
                    break
            read += await self._rest(size)
        return read

    def _try(self, replica: Scrubbed, first_seq: int) -> int | None:
        try:
            with self.keep_open():
                return replica.segments.try_block(first_seq)
        except StoreError:  # it has failed, or is closing
            return None

    def _again(self, replica: Scrubbed, segment: Segment) -> int:
        """Read a block again, on the loop. The thread could not read it because it is damaged, or
        because it was removed or the store was closed meanwhile, which cannot happen on the loop.
        Raises BlockDamaged."""
        if not replica.is_open() or segment.view is not None:
            return 0
        if next(replica.segments.from_seq(segment.first_seq), None) is not segment:
            return 0
        return int(replica.segments.read_block(segment.first_seq).nbytes)

    async def _entries(self, replica: Scrubbed) -> int:
        read, log = 0, replica.log
        index = log.first_index()
        while replica.is_open() and index <= log.last_index():
            index = max(index, log.first_index())  # it may have been cut meanwhile
            try:
                entries = log.entries(index, Index(index + 1), 1)
            except DamagedLog as damage:
                self.damaged(replica.group, damage)
                break
            index = Index(index + 1)
            read += await self._rest(sum(len(entry.data) for entry in entries))
        return read

    async def _rest(self, size: int) -> int:
        """Pause in proportion to the bytes read."""
        await asyncio.sleep(max(size, RECORD_BYTES) / BYTES_PER_SECOND)
        return size
