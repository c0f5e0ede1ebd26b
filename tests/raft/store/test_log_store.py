"""The log store against a real RocksDB in a temporary directory."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rocksdict import Options, Rdict, WriteBatch
from rocksdict import WriteOptions as RocksWriteOptions

from raft.core.messages import Entry, EntryKind
from raft.store.log_store import (
    DamagedLog,
    LogStore,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreTuning,
    WrongDirectory,
)
from raft.store.records import KEY, entry_value
from raft.store.write_batch import LogBatch
from raft.types import GroupId, HardState, Index, NodeId, SnapshotMeta, Term, node_id

G = GroupId(7)
_MEMTABLES = "rocksdb.cur-size-all-mem-tables"
SMALL = StoreTuning(log_buffer_bytes=8 << 20, state_buffer_bytes=8 << 20)


def open_store(path: Path, *, node: str = "n1", cluster: str = "c") -> LogStore:
    return LogStore.open(path, node_name=node, cluster_name=cluster, tuning=SMALL)


def entries(first: int, last: int, *, term: int = 1, size: int = 10) -> list[Entry]:
    return [Entry(Index(i), Term(term), bytes([i % 251]) * size) for i in range(first, last + 1)]


def append(store: LogStore, group: GroupId, new: list[Entry]) -> None:
    batch = LogBatch()
    batch.put_entries(group, new)
    store.write(batch)


def put_raw(store: LogStore, key: bytes, value: bytes) -> None:
    raw = WriteBatch(raw_mode=True)
    raw.put(key, value, store.column_handle("raft"))
    store.db.write(raw)


def all_entries(store: LogStore, group: GroupId = G) -> list[Entry]:
    log = store.reader(group)
    low, high = log.first_index(), Index(log.last_index() + 1)
    return log.entries(low, high, 1 << 40) if low < high else []


def crash_image(source: Path, target: Path) -> Path:
    """What a crash of the process now would leave on disk (the page cache survives it)."""
    shutil.copytree(source, target)
    return target


def newest_wal(path: Path) -> Path:
    return max(path.glob("*.log"), key=lambda wal: int(wal.stem))


def test_entries_hard_state_and_terms_come_back(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    batch = LogBatch()
    noop = Entry(Index(1), Term(3), b"", EntryKind.NOOP)
    batch.put_entries(G, [noop, *entries(2, 5, term=3)])
    batch.put_hard_state(G, HardState(Term(3), NodeId(2**63 - 1), Index(4)))
    batch.put_entries(GroupId(9), entries(1, 2, term=1))
    store.write(batch)
    append(store, G, entries(6, 8, term=4))
    store.close()

    store = open_store(tmp_path)
    assert store.groups() == [G, GroupId(9)]
    assert store.exists(G)
    assert not store.exists(GroupId(8))
    assert store.hard_state(G) == HardState(Term(3), NodeId(2**63 - 1), Index(4))
    assert all_entries(store) == [noop, *entries(2, 5, term=3), *entries(6, 8, term=4)]
    log = store.reader(G)
    assert [log.term(Index(i)) for i in (0, 1, 5, 6, 8, 9)] == [0, 3, 3, 4, 4, None]
    assert (log.first_index(), log.last_index()) == (1, 8)
    store.close()


def test_reads_are_limited_by_bytes_but_give_at_least_one_entry(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    append(store, G, entries(1, 10, size=1000))
    log = store.reader(G)
    assert [e.index for e in log.entries(Index(3), Index(9), 2500)] == [3, 4]
    assert [e.index for e in log.entries(Index(3), Index(9), 1)] == [3]
    with pytest.raises(DamagedLog):
        log.entries(Index(9), Index(12), 1 << 20)
    store.close()


def test_a_conflicting_append_replaces_the_tail(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    append(store, G, entries(1, 10, term=1))
    append(store, G, entries(6, 7, term=2))
    for _ in range(2):
        log = store.reader(G)
        assert log.last_index() == 7
        assert [log.term(Index(i)) for i in (5, 6, 7, 8)] == [1, 2, 2, None]
        assert all_entries(store) == [*entries(1, 5, term=1), *entries(6, 7, term=2)]
        store.close()
        store = open_store(tmp_path)
    store.close()


def test_entries_of_one_batch_are_joined_and_the_later_ones_win(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    batch = LogBatch()
    batch.put_entries(G, entries(1, 5, term=1))
    batch.put_entries(G, entries(4, 4, term=2))
    batch.put_entries(G, entries(5, 6, term=2))
    store.write(batch)
    assert all_entries(store) == [*entries(1, 3, term=1), *entries(4, 6, term=2)]
    store.close()


def test_compaction_and_snapshots_move_the_start_of_the_log(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    append(store, G, [*entries(1, 4, term=1), *entries(5, 10, term=2)])
    append(store, GroupId(8), entries(1, 1))
    batch = LogBatch()
    store.compact(batch, G, Index(6))
    store.write(batch)
    for _ in range(2):
        log = store.reader(G)
        assert log.snapshot() == SnapshotMeta(Index(6), Term(2))
        assert [log.term(Index(i)) for i in (5, 6, 7, 10)] == [None, 2, 2, 2]
        assert [e.index for e in all_entries(store)] == [7, 8, 9, 10]
        store.close()
        store = open_store(tmp_path)
    batch = LogBatch()
    batch.put_snapshot(G, SnapshotMeta(Index(50), Term(9)))
    batch.put_hard_state(G, HardState(Term(9), NodeId(0), Index(50)))
    batch.put_entries(G, entries(51, 52, term=9))
    store.write(batch)
    store.close()
    store = open_store(tmp_path)
    assert [e.index for e in all_entries(store)] == [51, 52]
    assert store.reader(G).snapshot() == SnapshotMeta(Index(50), Term(9))
    assert [e.index for e in all_entries(store, GroupId(8))] == [1]
    assert store.reader(G).entries(Index(50), Index(52), 1000) == []  # compacted
    with pytest.raises(StoreError):
        store.compact(LogBatch(), G, Index(60))
    batch = LogBatch()
    store.compact(batch, G, Index(52))
    store.write(batch)
    assert (store.reader(G).first_index(), store.reader(G).last_index()) == (53, 52)
    store.close()


def test_a_started_installation_is_recorded_until_the_log_is_replaced(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    append(store, G, entries(1, 4))
    batch = LogBatch()
    batch.put_installing(G, SnapshotMeta(Index(9), Term(2)))
    store.write(batch)
    store.close()
    store = open_store(tmp_path)
    assert store.reader(G).record.installing == SnapshotMeta(Index(9), Term(2))
    assert store.reader(G).last_index() == 4
    batch = LogBatch()
    batch.put_snapshot(G, SnapshotMeta(Index(9), Term(2)))
    store.write(batch)
    assert store.reader(G).record.installing.index == 0
    assert store.reader(G).first_index() == 10
    store.close()


def test_a_removed_group_leaves_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    append(store, G, entries(1, 3))
    append(store, GroupId(8), entries(1, 2))
    batch = LogBatch()
    batch.remove(G)
    store.write(batch)
    assert store.groups() == [GroupId(8)]
    assert store.reader(G).last_index() == 0
    store.close()


def test_flushed_writes_survive_a_crash_and_a_torn_tail_is_cut(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    append(store, G, entries(1, 100, size=1000))
    store.flush()
    append(store, G, entries(101, 101, size=1000))  # written, never flushed, never promised
    image = crash_image(tmp_path / "a", tmp_path / "b")
    store.close()
    with newest_wal(image).open("r+b") as wal:
        wal.truncate(wal.seek(0, 2) - 300)
    store = open_store(image)
    assert store.reader(G).last_index() == 100
    assert all_entries(store) == entries(1, 100, size=1000)
    store.close()


def test_a_crash_in_a_large_write_leaves_a_prefix_of_its_entries(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    append(store, G, entries(1, 3))
    batch = LogBatch()
    batch.put_entries(G, entries(4, 40, size=20_000))
    batch.put_hard_state(G, HardState(Term(1), NodeId(5), Index(3)))
    store.write(batch)
    image = crash_image(tmp_path / "a", tmp_path / "b")
    store.close()
    with newest_wal(image).open("r+b") as wal:
        wal.truncate(wal.seek(0, 2) - 300_000)
    store = open_store(image)
    last = store.reader(G).last_index()
    assert 10 < last < 40
    assert all_entries(store) == [*entries(1, 3), *entries(4, last, size=20_000)]
    assert store.hard_state(G).vote == NodeId(5)
    store.close()


def test_a_crash_never_leaves_less_than_a_conflicting_append_replaces(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    append(store, G, entries(1, 30))
    append(store, G, entries(21, 30, term=2, size=20_000))
    image = crash_image(tmp_path / "a", tmp_path / "b")
    store.close()
    with newest_wal(image).open("r+b") as wal:
        wal.truncate(wal.seek(0, 2) - 30_000)
    store = open_store(image)
    assert all_entries(store) == entries(1, 30)
    store.close()


def test_a_partly_refused_write_leaves_no_stale_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    append(store, G, entries(1, 3))
    batch = LogBatch()
    batch.put_entries(G, entries(4, 9, size=40_000))
    written = store._write
    calls = []

    def refuse_the_fourth(*write: Any) -> None:
        calls.append(write)
        if len(calls) == 4:
            raise StoreBusy("not now")
        written(*write)

    monkeypatch.setattr(store, "_write", refuse_the_fourth)
    with pytest.raises(StoreBusy):
        store.write(batch)
    assert store.reader(G).last_index() == 3
    batch.put_entries(G, entries(5, 5, term=2))  # another leader: 6 to 9 never existed there
    store.write(batch)
    expected = [*entries(1, 3), *entries(4, 4, size=40_000), *entries(5, 5, term=2)]
    assert all_entries(store) == expected
    store.close()
    store = open_store(tmp_path)
    assert all_entries(store) == expected
    store.close()


def test_damage_before_the_end_of_the_write_ahead_log_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    for i in range(1, 101):
        append(store, G, entries(i, i, size=1000))
    store.flush()
    image = crash_image(tmp_path / "a", tmp_path / "b")
    store.close()
    with newest_wal(image).open("r+b") as wal:
        wal.seek(50_000)
        wal.write(b"\xff\x00\xff\x00")
    with pytest.raises(StoreError, match="damaged"):
        open_store(image)


@pytest.mark.parametrize("damage", ["data", "short", "moved", "gap", "record", "no record"])
def test_damage_inside_a_log_quarantines_that_group_only(tmp_path: Path, damage: str) -> None:
    store = open_store(tmp_path)
    append(store, G, entries(1, 5))
    append(store, GroupId(8), entries(1, 5))
    good = entry_value(G, entries(3, 3)[0])
    match damage:
        case "data":
            put_raw(store, KEY.pack(G, 3), good[:-1] + b"\xff")
        case "short":
            put_raw(store, KEY.pack(G, 3), b"abc")
        case "moved":
            put_raw(store, KEY.pack(G, 3), entry_value(G, entries(4, 4)[0]))
        case "gap":
            store.column("raft").delete(KEY.pack(G, 3))
        case "record":
            put_raw(store, KEY.pack(G, 0), b"\x00" * 60)
        case "no record":
            store.column("raft").delete(KEY.pack(G, 0))
    store.close()
    store = open_store(tmp_path)
    with pytest.raises(DamagedLog) as caught:
        store.reader(G)
    assert caught.value.group == G
    assert len(all_entries(store, GroupId(8))) == 5
    batch = LogBatch()
    batch.remove(G)
    store.write(batch)
    assert store.reader(G).last_index() == 0
    store.close()


def test_a_log_shorter_than_its_commit_is_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    append(store, G, entries(1, 5))
    batch = LogBatch()
    batch.put_hard_state(G, HardState(Term(1), NodeId(0), Index(5)))
    store.write(batch)
    store.column("raft").delete(KEY.pack(G, 5))
    store.close()
    store = open_store(tmp_path)
    with pytest.raises(DamagedLog, match="committed"):
        store.reader(G)
    store.close()


@pytest.mark.parametrize(
    ("node", "cluster", "reason"),
    [("n2", "c", 'belongs to server "n1"'), ("n1", "d", 'belongs to cluster "c"')],
)
def test_the_directory_of_another_server_is_refused(
    tmp_path: Path, node: str, cluster: str, reason: str
) -> None:
    store = open_store(tmp_path)
    incarnation = store.identity.incarnation
    store.close()
    with pytest.raises(WrongDirectory, match=reason):
        open_store(tmp_path, node=node, cluster=cluster)
    store = open_store(tmp_path)
    assert store.identity.incarnation == incarnation
    with pytest.raises(StoreError, match="in use"):
        open_store(tmp_path)
    raw = WriteBatch(raw_mode=True)
    raw.put(b"identity", b'{"format":99,"node_name":"n1","cluster_name":"c","incarnation":1}')
    store.db.write(raw)
    store.close()
    with pytest.raises(WrongDirectory, match="format 99"):
        open_store(tmp_path)


def test_another_directory_is_another_member(tmp_path: Path) -> None:
    """What a node has promised is in its directory: without it, it has no right to its id."""
    store = open_store(tmp_path / "one")
    member = store.identity.member
    store.close()
    store = open_store(tmp_path / "one")
    assert store.identity.member == member
    store.close()
    other = open_store(tmp_path / "other")
    assert other.identity.member != member
    raw = WriteBatch(raw_mode=True)
    raw.put(b"identity", b'{"format":1,"node_name":"n1","cluster_name":"c","incarnation":7}')
    other.db.write(raw)
    other.close()
    old = open_store(tmp_path / "other")  # of an earlier version
    assert old.identity.member == node_id("n1")
    old.close()


def test_state_written_without_the_log_is_durable_after_flush_state(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    unlogged = RocksWriteOptions()
    unlogged.disable_wal = True
    store.state_column().put(b"flushed", b"1", unlogged)
    store.flush_state()
    store.state_column().put(b"volatile", b"1", unlogged)
    image = crash_image(tmp_path / "a", tmp_path / "b")
    store.close()
    store = open_store(image)
    assert store.state_column().get(b"flushed") == b"1"
    assert store.state_column().get(b"volatile") is None
    store.close()


def test_flush_releases_the_interpreter_lock_and_writes_go_on_meanwhile(tmp_path: Path) -> None:
    """The host relies on this behavior of rocksdict: while `flush` runs in a thread, this thread
    keeps counting, and `write` is accepted."""
    store = LogStore.open(tmp_path, node_name="n1", cluster_name="c")  # large enough: no stall
    turns_during_flush = writes_during_flush = 0
    index = 1
    for _ in range(10):  # a single flush may end before this thread is scheduled
        append(store, G, entries(index, index + 1, size=1 << 20))
        index += 2
        flushing = threading.Event()

        def run(flushing: threading.Event = flushing) -> None:
            flushing.set()
            store.flush()

        thread = threading.Thread(target=run)
        thread.start()
        flushing.wait()
        while thread.is_alive():
            turns_during_flush += 1
            if turns_during_flush % 50 == 1:
                append(store, G, entries(index, index, size=100))
                index += 1
                writes_during_flush += 1
        thread.join()
    assert turns_during_flush > 50
    assert writes_during_flush > 0
    assert store.reader(G).last_index() == index - 1
    store.close()


def test_flush_wal_syncs_the_file_and_write_alone_does_not(tmp_path: Path) -> None:
    options = Options(raw_mode=True)
    options.enable_statistics()
    db = Rdict(str(tmp_path), options)

    def synced() -> int:
        lines = (options.get_statistics() or "").splitlines()
        return int(next(line for line in lines if "rocksdb.wal.synced" in line).split()[-1])

    for round_number in range(3):
        raw = WriteBatch(raw_mode=True)
        raw.put(b"k", b"v")
        db.write(raw)
        assert synced() == round_number
        db.flush_wal(sync=True)
        assert synced() == round_number + 1
    db.close()


def test_a_failed_flush_or_write_is_final(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    append(store, G, entries(1, 1))

    class BrokenDisk:
        def __init__(self, db: object) -> None:
            self.real = db

        def flush_wal(self, *, sync: bool) -> None:
            raise OSError(5, "Input/output error")

    real, store.db = store.db, BrokenDisk(store.db)
    with pytest.raises(StoreFailed, match="Input/output"):
        store.flush()
    store.db = real
    assert not store.statistics().healthy
    with pytest.raises(StoreFailed):
        append(store, G, entries(2, 2))
    store.close()


def test_writes_accepted_before_the_disk_was_full_still_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = StoreTuning(log_buffer_bytes=8 << 20, free_bytes_min=1 << 20)
    store = LogStore.open(tmp_path, node_name="n1", cluster_name="c", tuning=tuning)
    buffered = sum(store.column(n).property_int_value(_MEMTABLES) or 0 for n in ("raft", "state"))
    free = buffered + (900 << 10)  # less than the reserve, more than half of it
    facts = SimpleNamespace(f_bavail=free, f_blocks=1 << 40, f_frsize=1)
    monkeypatch.setattr("raft.store.disk_space.os.statvfs", lambda _path: facts)
    assert not store.check_space()
    append(store, G, entries(1, 3))
    with pytest.raises(StoreFull):
        append(store, G, entries(4, 4, size=600 << 10))
    assert [entry.index for entry in all_entries(store)] == [1, 2, 3]
    store.close()


def test_a_large_write_checks_the_disk_space_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = StoreTuning(log_buffer_bytes=8 << 20, free_bytes_min=1 << 20)
    store = LogStore.open(tmp_path, node_name="n1", cluster_name="c", tuning=tuning)
    facts = SimpleNamespace(f_bavail=1 << 30, f_blocks=1 << 40, f_frsize=1)
    monkeypatch.setattr("raft.store.disk_space.os.statvfs", lambda _path: facts)
    assert store.check_space()
    facts.f_bavail = 0
    append(store, G, entries(1, 1, size=64 << 10))
    assert not store.full
    append(store, G, entries(2, 2, size=128 << 10))
    assert store.full
    store.close()
