"""A directory of format 1, with its log in the database, becomes one with a log of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from rocksdict import Options, Rdict, WriteBatch

from raft.core.messages import Entry
from raft.store import migration
from raft.store.database import StoreIdentity
from raft.store.log_store import DamagedLog, LogStore, StoreError
from raft.store.node_log import NodeLog
from raft.store.records import KEY, GroupRecord, group_value
from raft.types import GroupId, HardState, Index, NodeId, SnapshotMeta, Term
from tests.support.log_format_1 import entry_value

ONE, TWO, BAD = GroupId(1), GroupId(2), GroupId(3)


def entries(first: int, last: int) -> list[Entry]:
    return [Entry(Index(i), Term(2), b"%d" % i * 40_000) for i in range(first, last + 1)]


def write_format_1(path: Path) -> None:
    options = Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    options.create_missing_column_families(create_missing_cfs=True)
    db = Rdict(str(path), options, {n: Options(raw_mode=True) for n in ("raft", "state")})
    db.put(b"identity", msgspec.json.encode(StoreIdentity(1, "n1", "c", 77)))
    raw, column = WriteBatch(raw_mode=True), db.get_column_family_handle("raft")
    records = {
        ONE: GroupRecord(HardState(Term(2), NodeId(5), Index(3), 2)),
        TWO: GroupRecord(
            HardState(Term(3), NodeId(6), Index(10)),
            SnapshotMeta(Index(10), Term(2)),
            SnapshotMeta(Index(20), Term(3)),
        ),
        BAD: GroupRecord(HardState(Term(9), NodeId(4), Index(1))),
    }
    for group, record in records.items():
        raw.put(KEY.pack(group, 0), group_value(group, record), column)
    for entry in entries(1, 60):
        raw.put(KEY.pack(ONE, entry.index), entry_value(ONE, entry), column)
    for entry in entries(11, 12):
        raw.put(KEY.pack(TWO, entry.index), entry_value(TWO, entry), column)
    raw.put(KEY.pack(BAD, 1), b"damaged" * 5, column)
    db.write(raw)
    del column
    state = db.get_column_family("state")
    state.put(b"kept", b"state")
    state.close()
    db.flush_wal(sync=True)
    db.close()


def check(path: Path) -> None:
    store = LogStore.open(path, node_name="n1", cluster_name="c")
    try:
        assert store.identity == StoreIdentity(2, "n1", "c", 77)
        assert store.groups() == [ONE, TWO, BAD]
        one, two = store.reader(ONE), store.reader(TWO)
        assert one.entries(Index(1), Index(61), 1 << 30) == entries(1, 60)
        assert one.hard_state() == HardState(Term(2), NodeId(5), Index(3), 2)
        assert two.entries(Index(11), Index(13), 1 << 30) == entries(11, 12)
        assert two.record.installing == SnapshotMeta(Index(20), Term(3))
        with pytest.raises(DamagedLog):
            store.reader(BAD)
        assert store.state_column().get(b"kept") == b"state"
        assert "raft" not in Rdict.list_cf(str(path))
    finally:
        store.close()


def test_the_log_moves_out_of_the_database(tmp_path: Path) -> None:
    write_format_1(tmp_path)
    check(tmp_path)
    check(tmp_path)
    store = LogStore.open(tmp_path, node_name="n1", cluster_name="c")
    assert store.give_up_log(BAD).hard_state() == HardState(Term(9), NodeId(4), Index(0), 1)
    store.close()


@pytest.mark.parametrize("step", ["copy", "copied", "identity", "drop"])
def test_a_migration_that_was_interrupted_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write_format_1(tmp_path)

    def interrupted(*_: Any, **__: Any) -> None:
        raise OSError(5, "interrupted")

    with monkeypatch.context() as broken:
        match step:
            case "copy":
                real, calls = NodeLog.write, iter(range(100))

                def write(self: NodeLog, *batch: Any, **options: Any) -> int:
                    return interrupted() if next(calls) > 0 else real(self, *batch, **options)

                broken.setattr(NodeLog, "write", write)
            case "copied":
                broken.setattr(migration, "write_identity", interrupted)
            case "identity":
                broken.setattr(migration, "drop_old_log", interrupted)
            case _:
                real_drop = migration.drop_old_log

                def drop(db: Rdict) -> None:
                    real_drop(db)
                    interrupted()

                broken.setattr(migration, "drop_old_log", drop)
        with pytest.raises(StoreError, match="interrupted"):
            LogStore.open(tmp_path, node_name="n1", cluster_name="c")
    check(tmp_path)
