"""The scrub: it reads everything at a bounded rate, and damage that nobody reads is found."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from broker.cluster import scrub
from broker.cluster.node_files import DirectoryFiles
from broker.cluster.scrub import Scrub, Scrubbed
from broker.store import persistence, segments
from broker.store.memory_db import MemoryDb
from broker.store.messages import MessageStore
from broker.store.state_keys import BLOCK, key
from raft import Entry, GroupId, Index, Term
from raft.store.records import DamagedLog

G = GroupId(7)
WEEK_NS = 7 * 86_400 * 10**9


class Log:
    """Ten entries; those in `bad` cannot be read."""

    def __init__(self, *bad: int) -> None:
        self.bad = bad

    def first_index(self) -> Index:
        return Index(1)

    def last_index(self) -> Index:
        return Index(10)

    def entries(self, low: Index, high: Index, max_bytes: int) -> list[Entry]:
        if low in self.bad:
            raise DamagedLog(G, low, "the checksum does not match")
        return [Entry(low, Term(1), b"x")]


@pytest.fixture(autouse=True)
def small_and_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEAL_ROWS", 10)
    monkeypatch.setattr(persistence, "SEAL_ROWS", 10)
    monkeypatch.setattr(scrub, "BYTES_PER_SECOND", 1 << 40)


def stored(db: MemoryDb) -> MessageStore:
    store = MessageStore(db.files(G))
    for number in range(55):
        store.append(b"s", b"", b"%d" % number, time_ns=number + 1)
    db.change(lambda batch: persistence.checkpoint(store, batch))
    persistence.written(store)
    again = MessageStore(db.files(G))
    persistence.load(again, persistence.image(store))
    return again


def scrubbing(
    directory: Path, store: MessageStore, log: Log, *, interval_ns: int = 1
) -> tuple[Scrub, list[str]]:
    found: list[str] = []
    store.segments.cache.on_damage = lambda group, error: found.append(f"{group}: {error}")
    replica = Scrubbed(G, store.segments, log, lambda: True)
    made = Scrub(
        files=DirectoryFiles(directory),
        replicas=lambda: [replica],
        damaged=lambda group, error: found.append(f"{group}: {error}"),
        now_ns=lambda: 2 * WEEK_NS,
        interval_ns=interval_ns,
        keep_open=nullcontext,
    )
    return made, found


def test_a_pass_reads_every_block_and_entry(tmp_path: Path) -> None:
    store = stored(MemoryDb())
    scrubber, found = scrubbing(tmp_path, store, Log())
    blocks = sum(s.nbytes for s in store.segments.all if s.view is None)
    assert blocks > 0
    assert asyncio.run(scrubber.once()) == blocks + 10
    assert not found


def test_a_damaged_block_or_entry_is_reported(tmp_path: Path) -> None:
    db = MemoryDb()
    store = stored(db)
    damaged = store.segments.all[3].first_seq
    raw = bytearray(db.files(G).get(BLOCK, damaged) or b"")
    raw[-1] ^= 1
    db.change(lambda batch: batch.put(key(G, BLOCK, damaged), bytes(raw)))
    scrubber, found = scrubbing(tmp_path, store, Log(4))
    asyncio.run(scrubber.once())
    assert len(found) == 2
    assert "checksum differs" in found[0]
    assert "damaged at index 4" in found[1]


def test_blocks_are_read_on_a_thread_and_the_loop_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that goes while the thread reads it is not damaged, and neither is one of a store
    that is being closed."""
    db = MemoryDb()
    store = stored(db)
    scrubber, found = scrubbing(tmp_path, store, Log())
    threads = []

    def reads_nothing(first_seq: int) -> int | None:
        threads.append(threading.current_thread())
        if first_seq > 1:
            store.segments.all[:] = [s for s in store.segments.all if s.first_seq != first_seq]
            db.change(lambda batch: batch.delete(key(G, BLOCK, first_seq)))
        return None

    monkeypatch.setattr(type(store.segments), "try_block", lambda _, seq: reads_nothing(seq))
    asyncio.run(scrubber.once())
    assert len(threads) > 2
    assert threading.main_thread() not in threads
    assert not found


def test_the_time_of_the_last_pass_survives_a_restart(tmp_path: Path) -> None:
    store = stored(MemoryDb())
    scrubber, _ = scrubbing(tmp_path, store, Log(), interval_ns=WEEK_NS)
    files = DirectoryFiles(tmp_path)

    async def work(last: bytes) -> bool:
        files.write(scrub.SCRUBBED_FILE, last)
        task = asyncio.create_task(scrubber.run())
        async with asyncio.timeout(20):
            while not (due := files.read(scrub.SCRUBBED_FILE) != last):
                await asyncio.sleep(0.001)
                if last.isdigit() and int(last) > WEEK_NS:
                    break
        task.cancel()
        await asyncio.wait([task])
        return due

    assert asyncio.run(work(b"%d" % (WEEK_NS - 1))), "the last pass was more than a week ago"
    assert not asyncio.run(work(b"%d" % (WEEK_NS + 10**12))), "not yet"
    assert asyncio.run(work(b"1\xff")), "a damaged file begins a new interval"
