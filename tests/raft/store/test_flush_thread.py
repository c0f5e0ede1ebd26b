"""Flushes on a thread outside of Python: one at a time, promises after them, failures told."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from raft.core.messages import Entry
from raft.store._sync_thread import FILES_MAX, SyncThread
from raft.store.flush_thread import FlushThread
from raft.store.log_flush import FILES_MAX as JOB_FILES_MAX
from raft.store.log_store import LogStore, StoreBusy, StoreFailed, StoreTuning
from raft.store.write_batch import LogBatch
from raft.types import GroupId, Index, Term

G = GroupId(7)
WITHIN_S = 30.0


class Beside:
    """Stands for the thread: its sync ends when the test says so."""

    def __init__(self, number: int = 0) -> None:
        self.asked, self.ended = threading.Event(), threading.Event()
        self.number = number
        self.descriptors: list[int] = []

    def start(self, descriptors: list[int]) -> None:
        self.descriptors = descriptors

    def wait(self) -> int:
        self.asked.set()
        assert self.ended.wait(WITHIN_S)
        return self.number


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    tuning = StoreTuning(segment_bytes_first=256 << 10, state_buffer_bytes=8 << 20)
    opened = LogStore.open(tmp_path, node_name="n", cluster_name="c", tuning=tuning)
    try:
        yield opened
    finally:
        opened.close()


def append(store: LogStore, index: int) -> None:
    batch = LogBatch()
    batch.put_entries(G, [Entry(Index(index), Term(1), b"data")])
    store.write(batch)


def promised(path: Path) -> bytes:
    return (path / "promises" / "promises").read_bytes()


def begin(store: LogStore, beside: Beside) -> object:
    job = store.begin_flush(beside)
    assert job is not None
    return job


async def flush(store: LogStore, thread: list[FlushThread], count: int = 1) -> list[object]:
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[object] = asyncio.Queue()
    thread.append(FlushThread(loop, store, answers.put_nowait))
    found = []
    for _ in range(count):
        thread[0].request()
        async with asyncio.timeout(WITHIN_S):
            found.append(await answers.get())
    return found


def run_flush(store: LogStore, count: int = 1) -> list[object]:
    async def run() -> list[object]:
        threads: list[FlushThread] = []
        try:
            return await flush(store, threads, count)
        finally:
            for thread in threads:
                thread.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("pure", ["", "1"], ids=["compiled", "pure"])
def test_what_is_written_is_flushed_and_promised(
    store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pure: str
) -> None:
    monkeypatch.setenv("JETRAFT_PURE", pure)
    append(store, 1)
    before = promised(tmp_path)
    assert store.log.trusted_end < store.log._segments.end
    assert run_flush(store, 2) == [None, None]
    assert store.log.trusted_end == store.log._segments.end
    assert promised(tmp_path) != before
    assert store.statistics().flushes == 2


def test_no_promise_is_remembered_before_the_sync_has_ended(
    store: LogStore, tmp_path: Path
) -> None:
    append(store, 1)
    before = promised(tmp_path)
    beside = Beside()
    job = begin(store, beside)
    assert promised(tmp_path) == before
    store.end_flush(job, 0)  # type: ignore[arg-type]
    assert promised(tmp_path) != before


def test_a_sync_that_fails_is_final(store: LogStore, tmp_path: Path) -> None:
    append(store, 1)
    before = promised(tmp_path)
    job = begin(store, Beside())
    with pytest.raises(StoreFailed):
        store.end_flush(job, errno.EIO)  # type: ignore[arg-type]
    assert promised(tmp_path) == before
    with pytest.raises(StoreFailed):
        store.begin_flush(Beside())
    (error,) = run_flush(store)
    assert isinstance(error, StoreFailed)


@pytest.mark.parametrize("number", [0, errno.EIO])
def test_another_flush_waits_for_the_sync_in_flight_and_shares_its_failure(
    store: LogStore, number: int
) -> None:
    append(store, 1)
    beside = Beside(number)
    job = begin(store, beside)
    outcome: list[BaseException | None] = []

    def other() -> None:
        try:
            store.flush()
        except StoreFailed as error:
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert beside.asked.wait(WITHIN_S)
        assert not outcome
        assert store.begin_flush(Beside()) is None, "the other flush has its turn"
    finally:
        beside.ended.set()
        thread.join(WITHIN_S)
    assert [type(error) for error in outcome] == [StoreFailed if number else type(None)]
    if number:
        with pytest.raises(StoreFailed):
            store.end_flush(job, number)  # type: ignore[arg-type]
    else:
        store.end_flush(job, 0)  # type: ignore[arg-type]


def test_a_flush_that_ends_late_takes_no_promise_back(store: LogStore, tmp_path: Path) -> None:
    append(store, 1)
    beside = Beside()
    job = begin(store, beside)
    assert beside.descriptors, "others may wait for it now"
    append(store, 2)
    beside.ended.set()
    store.flush()  # of another thread; this one has not heard of the end of its own
    before = promised(tmp_path)
    store.end_flush(job, 0)  # type: ignore[arg-type]
    assert promised(tmp_path) == before


def test_a_flush_whose_promises_another_one_could_not_note_has_failed(store: LogStore) -> None:
    append(store, 1)
    beside = Beside()
    job = begin(store, beside)
    beside.ended.set()

    def fails(_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store.log._promises.note = fails  # type: ignore[method-assign]
    with pytest.raises(StoreFailed):
        store.flush()
    with pytest.raises(StoreFailed):
        store.end_flush(job, 0)  # type: ignore[arg-type]


def test_a_store_is_not_reopened_while_its_files_are_synced(store: LogStore) -> None:
    append(store, 1)
    job = begin(store, Beside())
    with pytest.raises(StoreBusy):
        store.reopen()
    store.end_flush(job, 0)  # type: ignore[arg-type]


def test_closing_waits_for_the_sync_in_flight(store: LogStore) -> None:
    append(store, 1)
    beside = Beside()
    begin(store, beside)
    store.failure = OSError("no flush at the end")
    closing = threading.Thread(target=store.close)
    closing.start()
    try:
        assert beside.asked.wait(WITHIN_S)
        assert store.log._segments.segments, "the files are open"
    finally:
        beside.ended.set()
        closing.join(WITHIN_S)
    assert not store.log._segments.segments
    store.close = lambda: None  # type: ignore[method-assign]


def test_the_thread_tells_the_errno_and_ends() -> None:
    thread = SyncThread()
    read, write = os.pipe()
    try:
        for _ in range(3):
            thread.start([read])  # a pipe cannot be synced
            assert thread.wait() == errno.EINVAL
            assert thread.finish() == errno.EINVAL
        thread.start([])
        assert thread.wait() == 0
        with pytest.raises(ValueError, match="too many"):
            thread.start([read] * (FILES_MAX + 1))
    finally:
        thread.stop()
        thread.stop()
        os.close(read)
        os.close(write)
    with pytest.raises(RuntimeError):
        thread.start([])
    assert JOB_FILES_MAX <= FILES_MAX
