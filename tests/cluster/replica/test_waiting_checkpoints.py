"""A checkpoint with large blocks waits until they are on disk, and the stream goes on meanwhile."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from broker.cluster.replica.checkpoints import Checkpoints
from broker.store import state_db
from broker.store.sealed_blocks import SealedBlocks
from broker.store.state_db import StateDb
from broker.store.state_keys import BLOCK, RECORD, StateBatch, key
from broker.store.values.value_files import ValueFiles, WrittenValues
from chaos.sim.files import SimLogFiles
from chaos.sim.world.database import DatabaseFiles, SimDatabase, SimWriteBatch
from raft import GroupId, Index, SnapshotMeta, Term
from tests.support.cluster_fakes import run, turns

G = GroupId(5)
VALUE = b"v" * 1000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_db, "FILE_BYTES_MIN", 100)


class HeldWriter(SealedBlocks):
    """Writes when the test says so."""

    def __init__(self, values: ValueFiles) -> None:
        super().__init__(values, _open)
        self.jobs: list[tuple[list[tuple[bytes, bytes]], asyncio.Future[WrittenValues]]] = []

    def write(self, values: Any) -> asyncio.Future[WrittenValues]:
        future: asyncio.Future[WrittenValues] = asyncio.get_running_loop().create_future()
        self.jobs.append((values, future))
        return future

    async def finish(self, error: OSError | None = None) -> None:
        values, future = self.jobs.pop(0)
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(self._values.write(values))
        await turns(3)


@contextmanager
def _open() -> Iterator[None]:
    yield


class GrowingStream:
    """Every entry is a block."""

    def __init__(self) -> None:
        self.applied = 0
        self.unwritten = 0
        self.in_batch = 0
        self.far = False
        self.many = False
        self.growing = 0

    def needs_checkpoint(self) -> bool:
        return self.unwritten > 0

    def overdue(self) -> bool:
        return self.unwritten > 0

    def crowded(self) -> bool:
        return self.many

    def growing_bytes(self) -> int:
        return self.growing

    def seal(self) -> None:
        self.growing = 0

    def overdue_by_far(self) -> bool:
        return self.far

    def work_ahead(self) -> bool:
        return False

    def take_checkpoint(self, batch: StateBatch) -> int:
        assert not self.in_batch, "two checkpoints at once"
        for seq in range(self.applied - self.unwritten + 1, self.applied + 1):
            batch.put_sealed(key(G, BLOCK, seq), VALUE)
        batch.put(key(G, RECORD, 0), str(self.applied).encode())
        self.in_batch, self.unwritten = self.unwritten, 0
        return 1000 * self.in_batch

    def checkpoint_written(self) -> None:
        self.in_batch = 0


class Node:
    def __init__(self) -> None:
        self.database, self.files = DatabaseFiles(), SimLogFiles()
        values = ValueFiles(self.files, file_bytes=1 << 20)
        self.writer = HeldWriter(values)
        self.state = StateDb(
            cast(Any, SimDatabase(self.database, lambda: True)),
            new_batch=cast(Any, SimWriteBatch),
            values=values,
            writer=self.writer,
        )
        self.state.in_files = lambda: True
        self.stream = GrowingStream()
        self.failures: list[Exception] = []
        self.sizes: list[int] = []
        self.checkpoints = Checkpoints(
            self.stream,
            self.state,
            G,
            in_memory=False,
            relaxed=False,
            on_written=self.sizes.append,
            on_failure=self.failures.append,
        )

    def apply(self) -> None:
        self.stream.applied += 1
        self.stream.unwritten += 1
        self.checkpoints.applied(Term(1))

    @property
    def record(self) -> bytes | None:
        return self.state.files(G).get(RECORD, 0)

    def in_files(self) -> int:
        assert self.state.values is not None
        return len(self.state.values.of_owner(key(G, BLOCK, 0)[:8]))

    def blocks(self) -> list[bool]:
        files = self.state.files(G)
        return [files.get(BLOCK, seq) == VALUE for seq in range(1, self.stream.applied + 1)]


def test_nothing_is_written_before_the_blocks_are_on_disk_and_then_all_of_it() -> None:
    async def work() -> None:
        node = Node()
        node.apply()
        await turns(3)
        assert node.record is None
        assert node.checkpoints.written == 0
        node.apply()
        node.apply()
        await turns(3)
        assert len(node.writer.jobs) == 1, "one at a time"
        await node.writer.finish()
        assert node.record == b"1"
        assert node.checkpoints.written == 1
        assert len(node.writer.jobs) == 1, "the next one follows"
        await node.writer.finish()
        assert (node.record, node.in_files()) == (b"3", 3)
        assert node.blocks() == [True] * 3
        assert node.sizes == [1000, 2000]

    run(work())


def test_what_cannot_wait_is_written_to_the_database() -> None:
    async def work() -> None:
        node = Node()
        node.apply()
        node.stream.far = True
        node.apply()
        assert (node.record, node.in_files()) == (b"2", 0)
        assert node.blocks() == [True, True]
        await node.writer.finish()
        assert (node.record, node.in_files()) == (b"2", 0)
        assert node.state.values is not None
        node.state.values.close()
        node.state.flush()
        assert node.files.names() == [], "what was written in vain is removed"

    run(work())


def test_blocks_that_cannot_be_written_to_a_file_are_written_to_the_database() -> None:
    async def work() -> None:
        node = Node()
        node.apply()
        await turns(3)
        await node.writer.finish(OSError(errno.ENOSPC, "no space"))
        assert (node.record, node.in_files(), node.blocks()) == (b"1", 0, [True])
        assert not node.failures

    run(work())


@pytest.mark.parametrize("end", ["wipe", "close", "restored"])
def test_a_checkpoint_of_a_replica_that_is_gone_is_dropped(end: str) -> None:
    async def work() -> None:
        node = Node()
        node.apply()
        await turns(3)
        if end == "close":
            node.checkpoints.close()
        else:
            node.checkpoints.wipe()
        expected = None
        if end == "restored":
            node.stream.applied, node.stream.in_batch, expected = 9, 0, b"9"
            node.checkpoints.restored(SnapshotMeta(Index(9), Term(2)))
        waiting = asyncio.ensure_future(node.checkpoints.settled())
        await node.writer.finish()
        await waiting
        assert (node.record, node.in_files()) == (expected, 0)

    run(work())


def test_a_flush_waits_for_what_is_on_its_way() -> None:
    async def work() -> None:
        node = Node()
        node.apply()
        await turns(3)
        settled = asyncio.ensure_future(node.checkpoints.settled())
        await turns(3)
        assert not settled.done()
        node.apply()
        await node.writer.finish()
        await settled
        assert node.checkpoints.written == 1
        assert node.checkpoints.unflushed

    run(work())


def test_checkpoints_that_come_together_are_written_by_one_job() -> None:
    async def work() -> None:
        files = SimLogFiles()
        writer = SealedBlocks(ValueFiles(files, file_bytes=1 << 20), _open)
        syncs: list[str] = []

        def count(operation: str, _name: str) -> None:
            if operation == "sync":
                syncs.append(operation)

        files.fault = count
        jobs = [writer.write([(key(G, BLOCK, n), VALUE)]) for n in range(5)]
        done = await asyncio.gather(*jobs)
        assert len({one.places[0] for one in done}) == 5
        assert len(syncs) == 2
        files.fault = lambda _operation, _name: OSError(errno.EIO, "broken")
        for job in [writer.write([(key(G, BLOCK, n), VALUE)]) for n in range(2)]:
            with pytest.raises(OSError, match="broken"):
                await job

    run(work())


def test_entries_wait_for_a_checkpoint_when_much_is_applied_and_not_written() -> None:
    """They were applied until the loop wrote 24 MB into the database, in 80 ms."""

    async def work() -> None:
        node = Node()
        node.stream.many = True
        assert node.checkpoints.held_back() is None  # no checkpoint waits for the disk
        node.apply()
        await turns(3)
        held = node.checkpoints.held_back()
        assert held is not None
        node.stream.many = False
        assert node.checkpoints.held_back() is None  # little is unwritten
        node.stream.many = True
        gone_on: list[int] = []
        held.add_done_callback(lambda _: gone_on.append(node.stream.in_batch))
        await node.writer.finish()
        assert gone_on == [0]  # after the checkpoint is written
        assert node.checkpoints.held_back() is None

    run(work())


def test_entries_go_on_when_blocks_cannot_be_written_to_files() -> None:
    async def work() -> None:
        node = Node()
        node.stream.many = True
        node.apply()
        await turns(3)
        held = node.checkpoints.held_back()
        assert held is not None
        await node.writer.finish(OSError(errno.EIO, "broken"))
        assert held.done()
        assert node.checkpoints.held_back() is None
        assert node.record == b"1"
        assert not node.failures

    run(work())


def test_a_growing_block_is_idle_after_a_checkpoint_and_written_when_it_is_sealed() -> None:
    async def work() -> None:
        node = Node()
        node.stream.growing = 700
        node.checkpoints.dirty = True
        assert node.checkpoints.idle_bytes() == 0  # something was applied
        node.checkpoints.write()
        assert node.checkpoints.idle_bytes() == 700
        node.checkpoints.seal()
        assert node.stream.growing == 0
        assert node.checkpoints.dirty

    run(work())
