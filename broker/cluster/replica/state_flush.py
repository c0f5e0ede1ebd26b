"""Flushing the applied state of all groups to disk, and secure erase.

Owns: when the state column is flushed, so that logs can be compacted up to it; when securely
erased messages have to leave the log and the database files.
May not touch: what a checkpoint holds (broker.store), where a log may be cut (raft.host).
Secure erase rewrites the database, so erasures are batched, and the next rewrite waits for a
multiple of the time the last one took. So rewriting takes a small share of the time, however often
messages are erased, and every erased message has left the disk after two rewrites.
Spec: docs/decisions/0007-secure-erase.md; docs/ARCHITECTURE.md, "Storage"."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, Protocol

from broker.cluster.meta.meta_group import MetaGroup
from broker.cluster.node_files import NodeFiles
from broker.cluster.polling import eventually
from broker.cluster.replica.replica_table import ReplicaTable
from raft import GroupId, Index
from raft.host.host import Host
from raft.store.records import StoreBusy, StoreFailed, StoreFull

logger = logging.getLogger("jetraft.cluster")

FLUSH_EVERY_S: Final = 10.0
FLUSH_EVERY_FULL_S: Final = 1.0  # on a full disk: purged messages must leave it soon
# The table of streams is flushed when it has changed, but flushes take at most a twentieth of the
# time, or happen once a second.
FLUSH_SHARE: Final = 20
FLUSH_PAUSE_MAX_S: Final = 1.0
FLUSH_ABOVE_BYTES: Final = 64 << 20
IDLE_BYTES_MAX: Final = 16 << 20  # of the growing blocks of idle streams; above, they are sealed
IDLE_BLOCK_BYTES: Final = 128 << 10  # smaller ones are not worth a block
ERASE_AFTER_S: Final = 1.0  # erasures within this time are handled together
ERASE_FULL_S: Final = 60.0  # until it is tried again without enough space
ERASE_SHARE: Final = 20  # at most one twentieth of the time is spent on rewriting
ERASING_FILE: Final = "erasing"  # exists while something erased is still on disk
CUT_WITHIN_S: Final = 30.0  # a follower may delay the cut this long; it is tried again then


class FlushedState(Protocol):
    """The store, as far as this module uses it. Both calls block."""

    @property
    def full(self) -> bool: ...

    @property
    def log_goal_bytes(self) -> int: ...

    def flush_state(self) -> None: ...

    def expunge(self) -> None: ...


class ErasedBlocks(Protocol):
    async def empty_all(self) -> None:
        """After the next flush of the state, no block file contains erased messages. Raises
        OSError."""


class StateFlush:
    """One per node; `run` and `run_erasures` are its tasks."""

    def __init__(
        self,
        *,
        files: NodeFiles,
        store: FlushedState,
        host: Host,
        meta_group: MetaGroup,
        replicas: ReplicaTable,
        block_moves: ErasedBlocks,
    ) -> None:
        self._store = store
        self._host = host
        self._meta_group = meta_group
        self._replicas = replicas
        self._wanted = asyncio.Event()
        self._unflushed_bytes = 0
        self._one_at_a_time = asyncio.Lock()
        self._erased: dict[GroupId, Index] = {}
        self._erasure_wanted = asyncio.Event()
        self._files = files
        self._block_moves = block_moves

    def want(self) -> None:
        """The table of streams was written: flush it soon, because a restart needs it. The state of
        the streams waits for the end of the interval."""
        self._wanted.set()

    def written(self, size: int) -> None:
        """`size` more bytes of state were written and wait for a flush."""
        self._unflushed_bytes += size
        if self._unflushed_bytes > self._bytes_max:
            self._wanted.set()

    @property
    def _bytes_max(self) -> int:
        return min(FLUSH_ABOVE_BYTES, self._store.log_goal_bytes // 2)

    async def run(self) -> None:
        """Flush the applied state at intervals, so that logs can be compacted."""
        loop = asyncio.get_running_loop()
        due = loop.time() + FLUSH_EVERY_S
        while True:
            try:
                soon = loop.time() + FLUSH_EVERY_FULL_S
                async with asyncio.timeout_at(min(due, soon) if self._store.full else due):
                    await self._wanted.wait()
            except TimeoutError:
                pass  # the interval is over: flush what there is
            self._wanted.clear()
            began = loop.time()
            whole = began >= due or self._unflushed_bytes > self._bytes_max or self._store.full
            if whole:
                due = began + FLUSH_EVERY_S
            if self._host.failure is not None:
                continue
            try:
                await (self._flush() if whole else self._flush_table())
            except StoreFailed as error:
                self._host.store_failed(error)
            except StoreBusy as full:  # no log can be cut; the next flush tries it again
                logger.warning("cannot compact logs after a flush of the state: %s", full)
            await asyncio.sleep(min(FLUSH_SHARE * (loop.time() - began), FLUSH_PAUSE_MAX_S))

    async def _flush_table(self) -> None:
        async with self._one_at_a_time:
            meta = self._meta_group
            index = meta.written()
            await asyncio.to_thread(self._store.flush_state)
            meta.flushed(index)

    async def _flush(self) -> None:
        async with self._one_at_a_time:
            self._unflushed_bytes = 0
            self._seal_idle_blocks()
            for replica in [r for r in self._replicas if r.checkpoints.dirty]:
                checkpoints = replica.checkpoints
                while checkpoints.work_ahead():  # noqa: ASYNC110 - a part per turn
                    await asyncio.sleep(0)
                await checkpoints.settled()
                if self._replicas.get(replica.group) is replica:
                    checkpoints.write_soon()
                await asyncio.sleep(0)  # one checkpoint per turn of the loop
            for replica in list(self._replicas):
                await replica.checkpoints.settled()
            marks = [
                (r.checkpoints.flushed, r.checkpoints.written)
                for r in self._replicas
                if r.checkpoints.unflushed
            ]
            meta = self._meta_group
            marks.append((meta.flushed, meta.written()))
            await asyncio.to_thread(self._store.flush_state)
            for flushed, index in marks:
                flushed(index)

    def _seal_idle_blocks(self) -> None:
        """Otherwise streams without writes would keep a megabyte each in memory forever."""
        idle = [(one.checkpoints, one.checkpoints.idle_bytes()) for one in self._replicas]
        if sum(size for _, size in idle) > IDLE_BYTES_MAX:
            for checkpoints, size in idle:
                if size >= IDLE_BLOCK_BYTES:
                    checkpoints.seal()

    # -- secure erase ---------------------------------------------------------------------------

    def erased(self, group: GroupId, index: Index) -> None:
        """The entry at this index, which was just applied, has overwritten a message."""
        if not self._erased:
            self._files.write(ERASING_FILE, b"")
        self._erased[group] = index
        self._erasure_wanted.set()

    def resume_erasures(self) -> None:
        """Resume erasures that were not finished before a restart or a disk failure. Which groups
        they concern is no longer known, so it is done for all of them."""
        if self._files.read(ERASING_FILE) is not None:
            for replica in self._replicas:
                self.erased(replica.group, Index(replica.stream.applied))

    async def run_erasures(self) -> None:
        self.resume_erasures()
        while True:
            await self._erasure_wanted.wait()
            await asyncio.sleep(ERASE_AFTER_S)
            if self._host.trouble() is not None or self._store.full:
                continue
            began = time.monotonic()
            try:
                await self._expunge()
            except StoreFull as full:
                logger.warning("erased messages are still on disk, will retry: %s", full)
                await asyncio.sleep(ERASE_FULL_S)
                self.resume_erasures()
            except StoreFailed as error:
                self._host.store_failed(error)
            await asyncio.sleep(ERASE_SHARE * (time.monotonic() - began))

    async def _expunge(self) -> None:
        self._erasure_wanted.clear()
        erased, self._erased = self._erased, {}
        await self._flush()  # the rewritten blocks: after this, the log entries are not needed
        for group, index in erased.items():
            held = self._host.held(group)
            if held is not None:
                held.erase_upto = index
        cut = await eventually(lambda: self._are_cut(erased), timeout_s=CUT_WITHIN_S, every_s=0.1)
        try:
            await self._block_moves.empty_all()
        except OSError as error:
            raise StoreFull(f"blocks cannot be moved: {error}") from error
        await asyncio.to_thread(self._store.flush_state)
        await asyncio.to_thread(self._store.expunge)
        if not cut:
            logger.warning("a follower still needs log entries with erased messages")
            self._erased = {**erased, **self._erased}
            self._erasure_wanted.set()
        elif not self._erased:
            self._files.remove(ERASING_FILE)

    def _are_cut(self, erased: dict[GroupId, Index]) -> bool:
        return not any(
            held is not None and held.log.first_index() <= index
            for held, index in ((self._host.held(g), index) for g, index in erased.items())
        )
