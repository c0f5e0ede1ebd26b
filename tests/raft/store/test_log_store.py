"""The log store on a real disk. tests/raft/store/segments has its log over a simulated one."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from rocksdict import WriteBatch
from rocksdict import WriteOptions as RocksWriteOptions

from raft.core.messages import Entry, EntryKind
from raft.store.log_store import (
    DamagedLog,
    LogStore,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreTuning,
    WrongDirectory,
)
from raft.store.records import StoreHeld
from raft.store.segments.files import DiskFile
from raft.store.segments.log import SegmentBusy, SegmentLog
from raft.store.write_batch import LogBatch
from raft.types import GroupId, HardState, Index, NodeId, SnapshotMeta, Term, node_id
from tests.support.host_rig import BrokenDisk, flip_bit

G = GroupId(7)
_MEMTABLES = "rocksdb.cur-size-all-mem-tables"
SMALL = StoreTuning(segment_bytes_first=256 << 10, state_buffer_bytes=8 << 20)


def open_store(path: Path, *, node: str = "n1", cluster: str = "c") -> LogStore:
    return LogStore.open(path, node_name=node, cluster_name=cluster, tuning=SMALL)


def entries(first: int, last: int, *, term: int = 1, size: int = 10) -> list[Entry]:
    return [Entry(Index(i), Term(term), bytes([i % 251]) * size) for i in range(first, last + 1)]


def append(store: LogStore, group: GroupId, new: list[Entry]) -> None:
    batch = LogBatch()
    batch.put_entries(group, new)
    store.write(batch)


def all_entries(store: LogStore, group: GroupId = G) -> list[Entry]:
    log = store.reader(group)
    low, high = log.first_index(), Index(log.last_index() + 1)
    return log.entries(low, high, 1 << 40) if low < high else []


def crash_image(source: Path, target: Path) -> Path:
    """What a crash of the process now would leave on disk (the page cache survives it)."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.new"))
    return target


def newest_segment(path: Path) -> Path:
    """The one with the end of the log."""
    segments = sorted((path / "segments").glob("*.seg"))
    return next(s for s in reversed(segments) if any(s.read_bytes()[4096:]))


def zero_end(segment: Path, size: int) -> None:
    """Lose so many bytes before the end of what was written."""
    content = segment.read_bytes()
    end = len(content.rstrip(b"\0"))
    segment.write_bytes(content[: end - size].ljust(len(content), b"\0"))


def test_every_file_of_the_log_is_closed_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second close of a descriptor fails, or closes what another thread has opened meanwhile."""
    closed: list[DiskFile] = []
    really = DiskFile.close

    def close(file: DiskFile) -> None:
        closed.append(file)
        really(file)

    monkeypatch.setattr(DiskFile, "close", close)
    store = open_store(tmp_path)
    append(store, G, entries(1, 3))
    with caplog.at_level("INFO"):
        store.close()
    assert len(closed) == len(set(closed)) > 1
    assert "error while closing" not in caplog.text


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
    zero_end(newest_segment(image), 300)
    store = open_store(image)
    assert store.reader(G).last_index() == 100
    assert all_entries(store) == entries(1, 100, size=1000)
    store.close()


def test_a_log_that_has_lost_its_promised_end_is_damaged(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    append(store, G, entries(1, 100, size=100))
    append(store, GroupId(8), entries(1, 2))
    store.flush()
    append(store, G, entries(101, 101, size=1000))
    store.flush()
    image = crash_image(tmp_path / "a", tmp_path / "b")
    store.close()
    zero_end(newest_segment(image), 300)
    for _ in range(2):
        store = open_store(image)
        with pytest.raises(DamagedLog, match="lost its end; index 101 was promised"):
            store.reader(G)
        assert len(all_entries(store, GroupId(8))) == 2
        store.close()
    store = open_store(image)
    assert store.give_up_log(G).hard_state().lives == 1
    store.close()
    store = open_store(image)
    assert store.hard_state(G).lives == 1
    store.close()


@pytest.mark.parametrize(("applied", "kept"), [(3, 3), (0, 0), (9, 0)])
def test_a_log_that_is_given_up_keeps_the_position_of_what_was_applied(
    tmp_path: Path, applied: int, kept: int
) -> None:
    store = open_store(tmp_path)
    append(store, G, entries(1, 9))
    store.flush()
    flip_bit(store, 5, G)
    store.close()
    store = open_store(tmp_path)
    log = store.give_up_log(G, Index(applied))
    assert (log.snapshot().index, log.last_index(), log.hard_state().lives) == (kept, kept, 1)
    store.close()
    store = open_store(tmp_path)
    assert store.reader(G).last_index() == kept
    store.close()


def test_a_truncated_segment_is_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    for i in range(1, 41):
        append(store, G, entries(i, i, size=1000))
        store.flush()
    image = crash_image(tmp_path / "a", tmp_path / "b")
    store.close()
    segment = newest_segment(image)
    with segment.open("r+b") as file:
        file.truncate(20_000)
    store = open_store(image)
    with pytest.raises(DamagedLog, match="index 40 was promised"):
        store.reader(G)
    store.close()


def test_the_vote_of_a_lost_record_is_known_from_the_promises(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    append(store, G, entries(1, 3))
    store.flush()
    batch = LogBatch()
    batch.put_hard_state(G, HardState(Term(7), NodeId(4), Index(3)))
    store.write(batch)
    store.flush()
    image = crash_image(tmp_path / "a", tmp_path / "b")
    store.close()
    zero_end(newest_segment(image), 20)
    store = open_store(image)
    with pytest.raises(DamagedLog):
        store.reader(G)
    assert store.give_up_log(G).hard_state() == HardState(Term(7), NodeId(4), Index(0), 1)
    store.close()


def test_a_write_of_many_frames_that_is_refused_leaves_no_stale_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    append(store, G, entries(1, 3))
    batch = LogBatch()
    batch.put_entries(G, entries(4, 9, size=1_500_000))  # three frames
    real = SegmentLog._append
    calls = []

    def refuse_the_third(self: SegmentLog, *frame: Any, frees: bool) -> None:
        calls.append(frame)
        if len(calls) == 3:
            raise SegmentBusy("not now")
        real(self, *frame, frees=frees)

    monkeypatch.setattr(SegmentLog, "_append", refuse_the_third)
    while len(calls) < 3:  # the first segments are small
        with pytest.raises(StoreBusy):
            store.write(batch)
        if len(calls) < 3:
            calls.clear()
    assert store.reader(G).last_index() == 3
    batch.put_entries(G, entries(5, 5, term=2))  # another leader: 6 to 9 never existed there
    store.write(batch, may_wait=True)
    expected = [*entries(1, 3), *entries(4, 4, size=1_500_000), *entries(5, 5, term=2)]
    assert all_entries(store) == expected
    store.close()
    store = open_store(tmp_path)
    assert all_entries(store) == expected
    store.close()


@pytest.mark.parametrize("index", [1, 3, 5])
def test_damage_inside_a_log_quarantines_that_group_only(tmp_path: Path, index: int) -> None:
    store = open_store(tmp_path)
    append(store, G, entries(1, 5))
    append(store, GroupId(8), entries(1, 5))
    store.flush()
    flip_bit(store, index, G)
    with pytest.raises(DamagedLog, match="checksum"):
        all_entries(store)
    store.close()
    for _ in range(2):
        store = open_store(tmp_path)
        with pytest.raises(DamagedLog) as caught:
            store.reader(G)
        assert caught.value.group == G
        assert len(all_entries(store, GroupId(8))) == 5
        store.close()
    store = open_store(tmp_path)
    assert store.groups() == [G, GroupId(8)]
    batch = LogBatch()
    batch.remove(G)
    store.write(batch)
    assert store.reader(G).last_index() == 0
    store.close()
    store = open_store(tmp_path)
    assert store.groups() == [GroupId(8)]
    store.close()


def test_a_log_shorter_than_its_commit_is_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    append(store, G, entries(1, 5))
    batch = LogBatch()
    batch.put_hard_state(G, HardState(Term(1), NodeId(0), Index(6)))
    store.write(batch)
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
    with pytest.raises(StoreHeld, match="still open in this process"):
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
    raw.delete(b"log")  # noted since the log is in files of its own
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
    """While `flush` runs in a thread, this thread keeps counting, and `write` is accepted."""
    store = LogStore.open(tmp_path, node_name="n1", cluster_name="c")  # large enough: no stall
    turns_during_flush = writes_during_flush = 0
    index = 1
    for _ in range(10):  # a single flush may end before this thread is scheduled
        batch = LogBatch()
        batch.put_entries(G, entries(index, index + 1, size=1 << 20))
        store.write(batch, may_wait=True)
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


def test_a_failed_flush_or_write_is_final(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    append(store, G, entries(1, 1))
    disk = BrokenDisk(store, "sync", OSError(5, "Input/output error"))
    with pytest.raises(StoreFailed, match="Input/output"):
        store.flush()
    disk.works()
    assert not store.statistics().healthy
    with pytest.raises(StoreFailed):
        append(store, G, entries(2, 2))
    store.close()
