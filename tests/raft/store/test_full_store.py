"""A store on a disk that fills up: what is still written, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from raft.store.disk_space import Space
from raft.store.log_store import LogStore, StoreFull
from raft.store.write_batch import LogBatch
from raft.types import Index
from tests.raft.store.test_log_store import G, all_entries, append, entries

_MEMTABLES = "rocksdb.cur-size-all-mem-tables"


class SmallDisk:
    """20 MB, a quarter of it reserved; the store sees so much free space, besides memtables."""

    def __init__(self, store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._buffered = store.state_column().property_int_value(_MEMTABLES) or 0
        self._facts = SimpleNamespace(f_bavail=0, f_blocks=20 << 20, f_frsize=1)
        monkeypatch.setattr("raft.store.disk_space.os.statvfs", lambda _path: self._facts)

    def has(self, free: int) -> None:
        self._facts.f_bavail = self._buffered + free


def test_writes_accepted_before_the_disk_was_full_still_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LogStore.open(tmp_path, node_name="n1", cluster_name="c")
    disk = SmallDisk(store, monkeypatch)
    disk.has(4500 << 10)  # less than the reserve, more than half of it
    assert store.check_space() is Space.SHORT
    append(store, G, entries(1, 3))
    with pytest.raises(StoreFull):
        append(store, G, entries(4, 4, size=4 << 20))
    assert store.exhausted, "as long as a promised write does not fit, nothing is promised"
    append(store, G, entries(4, 4))
    assert not store.exhausted
    assert [entry.index for entry in all_entries(store)] == [1, 2, 3, 4]
    store.close()


def test_the_last_of_the_reserve_takes_small_writes_and_in_the_end_only_cuts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LogStore.open(tmp_path, node_name="n1", cluster_name="c")
    append(store, G, entries(1, 3))
    disk = SmallDisk(store, monkeypatch)
    disk.has(1 << 20)
    assert store.check_space() is Space.SCARCE
    append(store, G, entries(4, 4))
    disk.has(500 << 10)
    assert store.check_space() is Space.NONE
    with pytest.raises(StoreFull):
        append(store, G, entries(5, 5))
    batch = LogBatch()
    store.compact(batch, G, Index(2))
    store.write(batch)
    assert [entry.index for entry in all_entries(store)] == [3, 4]
    store.close()


def test_a_large_write_checks_the_disk_space_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LogStore.open(tmp_path, node_name="n1", cluster_name="c")
    disk = SmallDisk(store, monkeypatch)
    disk.has(10 << 20)
    assert store.check_space() is Space.AMPLE
    disk.has(0)
    append(store, G, entries(1, 1, size=64 << 10))
    assert not store.full
    append(store, G, entries(2, 2, size=700 << 10))
    assert store.full
    store.close()
