"""Garbage that deleted values leave in blob files, and when its space is reclaimed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rocksdict import Rdict

from raft.host.host import CompactionPolicy, Host
from raft.store import blob_garbage as garbage
from raft.store.log_store import LogStore, StoreTuning
from raft.transport.transport import Transport
from raft.types import node_id

VALUE_BYTES = 64 << 10
TUNING = StoreTuning(state_buffer_bytes=8 << 20)
WAIT_S = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    store = LogStore.open(tmp_path / "db", node_name="n1", cluster_name="c", tuning=TUNING)
    yield store
    store.close()


@pytest.fixture(autouse=True)
def _little_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_GARBAGE_BYTES_MIN", 1 << 20)
    monkeypatch.setattr(garbage, "_CROWDED", 1 << 60)  # whatever the disk of this machine has


def put(column: Rdict, numbers: Iterable[int]) -> None:
    for number in numbers:
        column[number.to_bytes(8, "big")] = number.to_bytes(8, "big") * (VALUE_BYTES // 8)
    column.flush(wait=True)


def delete(column: Rdict, numbers: Iterable[int]) -> None:
    for number in numbers:
        del column[number.to_bytes(8, "big")]
    column.flush(wait=True)


def files_of_values(path: Path) -> dict[str, int]:
    found = {}
    for file in path.glob("*.blob"):
        with suppress(FileNotFoundError):  # the database removed it after the listing
            found[file.name] = file.stat().st_size
    return found


def known_garbage(column: Rdict) -> int:
    return column.property_int_value("rocksdb.live-blob-file-garbage-size") or 0


def test_live_values_are_not_moved_by_compaction(store: LogStore, tmp_path: Path) -> None:
    column = store.state_column()
    for part in range(8):
        put(column, range(2 * part, 320, 16))
    column.compact_range(None, None)
    files = files_of_values(tmp_path / "db")
    assert len(files) == 8
    put(column, range(1, 320, 16))  # between the others, whose keys are written again
    column.compact_range(None, None)
    assert files.items() <= files_of_values(tmp_path / "db").items()


def test_reclaims_when_more_than_half_is_garbage(store: LogStore, tmp_path: Path) -> None:
    column = store.state_column()
    put(column, range(100))
    delete(column, range(0, 80, 2))
    column.compact_range(None, None)
    assert known_garbage(column) > 39 * VALUE_BYTES
    assert not store.is_wasteful()
    delete(column, range(80, 95))
    column.compact_range(None, None)
    assert store.is_wasteful()
    store.reclaim()
    assert not store.is_wasteful()
    assert known_garbage(column) == 0
    assert sum(files_of_values(tmp_path / "db").values()) < 46 * VALUE_BYTES
    alive = [number.to_bytes(8, "big") for number in (*range(1, 80, 2), *range(95, 100))]
    assert dict(column.items()) == {key: key * (VALUE_BYTES // 8) for key in alive}


def test_many_deletes_together_are_recognized_as_garbage(store: LogStore, tmp_path: Path) -> None:
    column = store.state_column()
    put(column, range(600))
    delete(column, range(590))
    deadline = time.monotonic() + WAIT_S
    while sum(files_of_values(tmp_path / "db").values()) > 200 * VALUE_BYTES:
        assert time.monotonic() < deadline, "the database did not notice the deletes"
        time.sleep(0.01)


def test_a_store_that_is_closed_during_a_rewrite_can_be_opened_again(tmp_path: Path) -> None:
    for _ in range(5):
        store = LogStore.open(tmp_path / "db", node_name="n1", cluster_name="c", tuning=TUNING)
        put(store.state_column(), range(200))
        begun = threading.Event()
        rewriting = threading.Thread(target=_rewrite, args=(store, begun))
        rewriting.start()
        begun.wait()
        store.close()
        rewriting.join()


def _rewrite(store: LogStore, begun: threading.Event) -> None:
    begun.set()
    store.expunge()


def test_the_host_reclaims_garbage_by_itself(store: LogStore, tmp_path: Path) -> None:
    column = store.state_column()
    put(column, range(100))
    delete(column, range(90))
    column.compact_range(None, None)
    asyncio.run(_run_host_until_small(store, tmp_path / "db"))


async def _run_host_until_small(store: LogStore, path: Path) -> None:
    node = node_id("n1")
    transport = Transport(
        node=node, name="n1", cluster="c", listen_host="127.0.0.1", listen_port=0, routes=[]
    )
    policy = CompactionPolicy(every_ticks=1)
    host = Host(node=node, store=store, transport=transport, tick_ms=10, compaction=policy)
    running = asyncio.create_task(host.run())
    try:
        async with asyncio.timeout(WAIT_S):
            while sum(files_of_values(path).values()) > 11 * VALUE_BYTES:
                await asyncio.sleep(0.01)
    finally:
        await host.stop()
        await running
    assert host.failure is None
