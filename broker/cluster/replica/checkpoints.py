"""Checkpoints of one replica: when its applied state is written, and how much of it is durable.

Owns: the state column of the group (through a StateKeeper), the work towards the next checkpoint,
and the index up to which the state survives a crash.
May not touch: what a checkpoint holds (broker.jetstream, broker.store); the flush of the state
column (state_flush.py).
Spec: docs/ARCHITECTURE.md, "Storage"; docs/decisions/0038-block-files.md. A checkpoint with large
blocks is taken first, and written once the blocks are on disk; the replica continues meanwhile. A
checkpoint that cannot wait is written with its blocks into the database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct as Packing
from typing import Protocol

from broker.store.state_db import RocksBatch, StateDb
from broker.store.state_keys import POSITION, StateBatch, StateKeeper, key
from broker.store.values.value_files import WrittenValues
from raft import GroupId, Index, SnapshotMeta, Term
from raft.store.records import StoreFailed

logger = logging.getLogger("jetraft.cluster")

_POSITION = Packing("<QQ")  # index, term


class CheckpointedStream(Protocol):
    @property
    def applied(self) -> int: ...
    def needs_checkpoint(self) -> bool: ...
    def overdue(self) -> bool:
        """Whether a checkpoint must be written now, prepared or not."""

    def growing_bytes(self) -> int: ...
    def seal(self) -> None:
        """End the growing block."""

    def crowded(self) -> bool:
        """No entry should be applied while a checkpoint waits for its blocks."""

    def overdue_by_far(self) -> bool:
        """As overdue, while a checkpoint waits for its blocks."""

    def work_ahead(self) -> bool:
        """Prepare a part of the next checkpoint. False when nothing is left to prepare."""

    def take_checkpoint(self, batch: StateBatch) -> int:
        """Put the checkpoint into the batch. Returns the bytes to write."""

    def checkpoint_written(self) -> None:
        """The batch of the last checkpoint was written to the database."""


@dataclass(slots=True, eq=False)
class WaitingCheckpoint:
    batch: RocksBatch
    index: Index  # what it includes
    size: int
    blocks: asyncio.Future[WrittenValues]


class Checkpoints:
    """`on_written` is called with the size of each checkpoint that waits for a flush, `on_failure`
    with the exception that stopped the background work. A stream in memory never flushes."""

    def __init__(
        self,
        stream: CheckpointedStream,
        state: StateKeeper,
        group: GroupId,
        *,
        in_memory: bool,
        relaxed: bool,
        on_written: Callable[[int], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.dirty = False  # entries were applied since the last checkpoint
        self._stream = stream
        self._state = state
        self._group = group
        self._in_memory = in_memory
        # With sync_interval, the log is flushed late: the state may be on disk before its entries,
        # so the checkpoint includes the term of the last one.
        self._relaxed = relaxed
        self._on_written = on_written
        self._on_failure = on_failure
        self._waiting: WaitingCheckpoint | None = None
        self._flushed = self.written = Index(stream.applied)  # what checkpoints include
        self._applied_term = Term(0)
        self._turn: asyncio.Handle | None = None  # of the background work

    def durable_index(self) -> Index:
        """The index up to which the state survives a crash. For a stream in memory that is all of
        it: state and log are lost together."""
        return Index(self._stream.applied) if self._in_memory else self._flushed

    def applied(self, term: Term) -> None:
        """Entries were applied, the last one of this term: write a checkpoint when it is time."""
        self._applied_term = term
        self.dirty = True
        if self._waiting is not None:
            if self._stream.overdue_by_far():
                self.write()
        elif self._stream.overdue():
            self.write_soon()
        elif self._turn is None and self._stream.needs_checkpoint():
            self._next_turn()

    def idle_bytes(self) -> int:
        """Of the growing block, if nothing was applied since the last checkpoint."""
        return 0 if self._in_memory or self.dirty else self._stream.growing_bytes()

    def seal(self) -> None:
        """End the growing block. The next checkpoint writes it, and it leaves the memory."""
        self._stream.seal()
        self.dirty = True

    def held_back(self) -> asyncio.Future[WrittenValues] | None:
        """What further entries have to wait for: much is applied that is not written, and a
        checkpoint waits for the disk. Writing it into the database instead would hold the loop for
        tens of milliseconds, and the disk would be no faster."""
        waiting = self._waiting
        if waiting is None or waiting.blocks.done() or not self._stream.crowded():
            return None
        return waiting.blocks

    def room(self) -> Iterator[asyncio.Future[WrittenValues]]:
        """The same, for a machine that prepares an entry."""
        if (blocks := self.held_back()) is not None:
            yield blocks

    def work_ahead(self) -> bool:
        """Prepare a part of the next checkpoint. False when only writing it is left."""
        return self._stream.work_ahead()

    def write(self) -> Index:
        """Write the applied state, which is durable after the next flush. Returns its index."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._write(waiting, None)
        size = self._state.change(self._fill)
        self._stream.checkpoint_written()
        self.dirty = False
        self._written(Index(self._stream.applied), size)
        return self.written

    def write_soon(self) -> None:
        """Write a checkpoint once its large blocks are on disk. Does nothing while another
        checkpoint waits."""
        state = self._state
        if self._waiting is not None:
            return
        if not isinstance(state, StateDb) or state.writer is None:
            self.write()
            return
        batch = state.begin()
        size = self._fill(batch)
        self.dirty = False
        index = Index(self._stream.applied)
        if not batch.large:
            state.write(batch)
            self._stream.checkpoint_written()
            self._written(index, size)
            return
        blocks = state.writer.write(list(batch.large.items()))
        waiting = self._waiting = WaitingCheckpoint(batch, index, size, blocks)
        blocks.add_done_callback(lambda _: self._blocks_written(waiting))

    async def settled(self) -> None:
        """Wait until the pending checkpoint, if there is one, is written."""
        if self._waiting is not None:
            await asyncio.wait([self._waiting.blocks])

    def _blocks_written(self, waiting: WaitingCheckpoint) -> None:
        """The blocks are on disk, or could not be written: then they go into the database with the
        checkpoint."""
        error = waiting.blocks.exception()
        written = waiting.blocks.result() if error is None else None
        if error is not None and not isinstance(error, StoreFailed):
            logger.warning("cannot write block files, blocks go into the database: %s", error)
        if waiting is not self._waiting:
            if written is not None and isinstance(self._state, StateDb) and self._state.values:
                self._state.values.settle(written)
            return
        self._waiting = None
        try:
            self._write(waiting, written)
        except Exception as failure:  # noqa: BLE001 - stops this group and is logged
            self._on_failure(failure)
            return
        if self._turn is None and self._stream.needs_checkpoint():
            self._next_turn()

    def _write(self, waiting: WaitingCheckpoint, written: WrittenValues | None) -> None:
        assert isinstance(self._state, StateDb)
        self._state.write(waiting.batch, written)
        self._stream.checkpoint_written()
        self._written(waiting.index, waiting.size)

    def _written(self, index: Index, size: int) -> None:
        if not self._in_memory:
            self._on_written(size)
        self.written = index

    @property
    def unflushed(self) -> bool:
        """Whether a written checkpoint waits for a flush."""
        return self.written > self._flushed

    def flushed(self, index: Index) -> None:
        self._flushed = max(self._flushed, index)

    def restored(self, meta: SnapshotMeta) -> None:
        """The state was replaced by a snapshot; the host flushes it before it continues."""
        self._applied_term = meta.term
        self.write()
        self._flushed = meta.index

    def loaded_term(self) -> Term | None:
        """The term of the loaded state, if it was written with log flushes postponed."""
        raw = self._state.files(self._group).get(POSITION, 0)
        if raw is None:
            return None
        index, term = _POSITION.unpack(raw)
        if index != self._stream.applied:
            return None
        self._applied_term = Term(term)
        return self._applied_term

    def wipe(self) -> None:
        self._waiting = None
        self._state.wipe(self._group)

    def close(self) -> None:
        self._waiting = None
        if self._turn is not None:
            self._turn.cancel()

    def _fill(self, batch: StateBatch) -> int:
        written = self._stream.take_checkpoint(batch)
        if self._relaxed:
            position = _POSITION.pack(self._stream.applied, self._applied_term)
            batch.put(key(self._group, POSITION, 0), position)
        return written

    def _next_turn(self) -> None:
        self._turn = asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        """Prepare the next checkpoint, a part per turn of the loop, and write it last."""
        self._turn = None
        if self._waiting is not None:
            return  # continues when the pending checkpoint is written
        try:
            if not self._stream.work_ahead():
                if not self._stream.needs_checkpoint():
                    return
                self.write_soon()
        except Exception as error:  # noqa: BLE001 - stops this group and is logged
            self._on_failure(error)
            return
        self._next_turn()
