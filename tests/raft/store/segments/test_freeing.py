"""Segments are freed on a thread of their own, at any moment of what the other threads do."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from chaos.sim.files import SimJobs, SimLogFiles
from raft.core.messages import Entry
from raft.store.disk_space import Space
from raft.store.node_log import LogPlace, NodeLog
from raft.store.segments.format import RECORD_BYTES, number_of, offset_of
from raft.store.segments.log import LogSegment, SegmentBusy
from raft.store.segments.scan import segment_name
from raft.store.segments.sizes import SegmentSizes
from raft.store.write_batch import LogBatch
from raft.types import GroupId, HardState, Index, NodeId, SnapshotMeta, Term

KB = 1 << 10
SIZES = SegmentSizes(
    first=64 * KB, largest=64 * KB, log_goal=256 * KB, spare_max=256 * KB, rest=64 * KB
)
QUIET, BUSY = GroupId(1), GroupId(2)
EIO = OSError(errno.EIO, "Input/output error")


class FreeingRig:
    """A log whose oldest segment is freed by moving the entries of a quiet group."""

    def __init__(self) -> None:
        self.files, self.jobs = SimLogFiles(), SimJobs()
        salts = iter(range(1, 1000))
        self.place = LogPlace(
            self.files,
            SimLogFiles(),
            lambda: self.jobs,
            lambda: next(salts),
            lambda _size: Space.AMPLE,
        )
        self.log = NodeLog(self.place, SIZES)
        self.jobs.run()
        self.append(QUIET, 1, [b"one", b"two", b"three"])
        for index in range(1, 9):
            self.append(BUSY, index, [bytes(30 * KB)])
        self.log.flush()
        batch = LogBatch()
        batch.cut(BUSY, SnapshotMeta(Index(8), Term(1)))
        self.put(batch)
        self.jobs.run()  # a segment is prepared

    def append(self, group: GroupId, first: int, data: list[bytes]) -> None:
        batch = LogBatch()
        if first == 1:
            batch.put_hard_state(group, HardState(Term(1), NodeId(1), Index(0)))
        batch.put_entries(
            group, [Entry(Index(first + i), Term(1), piece) for i, piece in enumerate(data)]
        )
        self.put(batch)

    def put(self, batch: LogBatch) -> None:
        for _ in range(5):
            try:
                self.log.write(batch, frees=True)
            except SegmentBusy:
                self.jobs.run()
            else:
                return
        pytest.fail("there is no segment")

    @property
    def oldest(self) -> int:
        return next(iter(self.log._segments.segments))

    def free(self) -> None:
        """What the thread of the jobs does."""
        oldest = self.oldest
        self.log.tick()
        self.jobs.run()
        assert self.oldest > oldest


class LockBehind:
    """A lock that the other thread had until the moment in which it is taken."""

    def __init__(self, lock: threading.RLock, other: Callable[[], None]) -> None:
        self.lock, self._other = lock, [other]

    def __enter__(self) -> None:
        if self._other:
            self._other.pop()()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


@contextmanager
def before_the_lock(log: NodeLog, other: Callable[[], None]) -> Iterator[None]:
    """The next one that takes the lock of the log gets it after `other`."""
    lock = log._segments.lock
    log._segments.lock = LockBehind(lock, other)  # type: ignore[assignment]
    try:
        yield
    finally:
        log._segments.lock = lock


def test_entries_are_read_while_another_thread_moves_them_and_frees_their_segment() -> None:
    rig = FreeingRig()
    with before_the_lock(rig.log, rig.free):
        found = rig.log.reader(QUIET).entries(Index(1), Index(4), 1 << 20)
    assert [entry.data for entry in found] == [b"one", b"two", b"three"]


def test_the_size_of_the_log_is_told_while_another_thread_frees_a_segment() -> None:
    segments = FreeingRig().log._segments
    before = segments.nbytes
    oldest = next(iter(segments.segments.values()))
    size = oldest.size

    class Freeing(LogSegment):
        """Another thread has its turn when its size is read."""

        @property
        def size(self) -> int:  # type: ignore[override]
            segments.segments.popitem()
            return size

        @size.setter
        def size(self, size: int) -> None: ...

    segments.segments[oldest.number] = Freeing(oldest.number, 0, 0, oldest.name, oldest.file)
    assert segments.nbytes == before


def test_the_file_of_an_empty_segment_is_flushed_before_it_is_freed() -> None:
    rig = FreeingRig()
    segments = rig.log._segments
    for _ in range(2):  # the second one leaves an empty segment behind
        segments.rotate()
        rig.jobs.run()
    empty = [s for s in segments.segments.values() if not s.groups and s is not segments.active]
    assert [s.file in segments.unflushed for s in empty] == [True]
    rig.log._logs.clear()  # then nothing that is alive needs a flush
    for segment in tuple(segments.segments.values()):
        if segment not in (segments.active, *empty):
            del segments.segments[segment.number]
    rig.free()
    assert not [s for s in empty if s.file in segments.unflushed or s.number in segments.segments]


def fill(log: NodeLog) -> Index:
    """The last entry that fits into the segment."""
    while True:
        last = log.reader(QUIET).last_index()
        batch = LogBatch()
        batch.put_entries(QUIET, [Entry(Index(last + 1), Term(1), b"more")])
        try:
            log.write(batch, frees=True)
        except SegmentBusy:
            return last


def test_a_damaged_group_record_in_a_log_without_space_is_written_again_later() -> None:
    rig = FreeingRig()
    segments, files = rig.log._segments, rig.files
    segments.next, files.free_bytes = None, 0
    last = fill(rig.log)
    position = rig.log.reader(QUIET).record_position
    assert number_of(position) == rig.oldest
    files._names[segment_name(rig.oldest)].data[offset_of(position) + RECORD_BYTES] ^= 1
    for _ in range(10):
        rig.log.tick()
        rig.jobs.run()
    assert number_of(position) == rig.oldest
    files.free_bytes = 1 << 30
    for _ in range(2):
        rig.log.tick()
        rig.jobs.run()
    assert number_of(position) < rig.oldest
    rig.log.close()
    again = NodeLog(rig.place, SIZES)
    assert again.reader(QUIET).last_index() == last


def test_a_prepared_segment_that_cannot_be_removed_is_replaced() -> None:
    rig = FreeingRig()
    allocator = rig.log._allocator
    rig.files.fault = lambda operation, _: EIO if operation == "remove" else None
    allocator.sizes = replace(SIZES, largest=8 * KB, first=8 * KB)
    allocator._fit()
    rig.files.fault = lambda _operation, _name: None
    prepared = rig.log._segments.next
    assert prepared is not None
    assert prepared.size < SIZES.largest
    rig.append(QUIET, 4, [b"four"])
    rig.log._segments.rotate()
    rig.append(QUIET, 5, [b"five"])
    rig.log.close()
    again = NodeLog(rig.place, SIZES)
    assert again.reader(QUIET).last_index() == 5


@pytest.mark.parametrize("operation", ["remove", "rename", "sync_names"])
def test_no_segment_is_freed_before_an_older_one_has_lost_its_name(operation: str) -> None:
    """A later segment may say that the end of an older one is void."""
    rig = FreeingRig()
    older, *later = [s.name for s in rig.log._segments.segments.values()]
    rig.log._allocator.short = operation == "remove"
    freed = older if operation != "sync_names" else ""
    rig.files.fault = lambda asked, name: EIO if (asked, name) == (operation, freed) else None
    for _ in range(3):
        rig.log._allocator.something_died()
        rig.log.tick(short=operation == "remove")
        rig.jobs.run()
    assert set(later) <= set(rig.files.names())
    rig.files.fault = lambda _operation, _name: None
    rig.log._allocator.something_died()
    rig.log.tick()
    rig.jobs.run()
    assert older not in rig.files.names()
    assert later[0] not in rig.files.names()
