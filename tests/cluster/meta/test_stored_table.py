"""The table of streams on disk: rows that follow every change, at a cost that does not grow."""

from __future__ import annotations

import random

import msgspec
import pytest

from broker.cluster.meta.assignments import META_GROUP, AssignmentTable, RenewStream, encode_command
from broker.cluster.meta.feature_level import RaiseLevel
from broker.cluster.meta.node_table import AddNode
from broker.cluster.meta.stored_table import LEVEL_OF_ROWS, StoredTable
from broker.store.memory_db import MemoryBatch, MemoryDb
from broker.store.state_keys import ASSIGNED, RECORD, key
from raft import Index
from tests.cluster.meta.test_assignments import Log


class CountingDb(MemoryDb):
    """Remembers how many bytes the last batch had."""

    bytes = 0

    def write(self, batch: MemoryBatch) -> None:
        self.bytes = sum(len(k) + len(v or b"") for k, v in batch.changes)
        super().write(batch)


def loaded(values: dict[bytes, bytes]) -> AssignmentTable:
    table = AssignmentTable()
    StoredTable(table, MemoryDb(dict(values))).load()
    return table


def with_rows() -> Log:
    log = Log()
    log.apply(RaiseLevel(LEVEL_OF_ROWS))
    return log


def a_few_changes(log: Log, dice: random.Random) -> None:
    for _ in range(dice.randint(1, 3)):
        name = dice.choice("ABCDEF")
        known = log.meta.get("$G", name)
        match dice.randrange(7):
            case 6 if dice.randrange(10) == 0:
                log.apply(RaiseLevel(LEVEL_OF_ROWS))
            case 5 if known is not None:
                log.apply(RenewStream("$G", name, known.group, known.members))
            case 0:
                log.remove(name)
            case 1:
                log.reconfigure(name, f"{name}.{dice.randrange(3)}")
            case 2:
                log.apply(AddNode(dice.randint(1, 4), dice.choice("xy"), 7))
            case _:
                log.assign(name, f"{name}.{dice.randrange(3)}")


@pytest.mark.parametrize("seed", range(10))
def test_after_a_crash_the_rows_are_those_of_the_head_and_the_log_replays_the_rest(
    seed: int,
) -> None:
    dice = random.Random(seed)
    log = Log()
    db = MemoryDb()
    stored = StoredTable(log.meta, db)
    on_disk: list[dict[bytes, bytes]] = [{}]  # a crash keeps the first batches, whole
    for _ in range(40):
        a_few_changes(log, dice)
        if dice.randrange(8) == 0:  # a snapshot of another node
            log.meta.load_dump(log.meta.dump())
        stored.write()
        on_disk.append(dict(db.values))
    for values in on_disk:
        again = loaded(values)
        for index in range(again.applied + 1, len(log.entries) + 1):
            again.apply(Index(index), log.entries[index - 1])
        assert again.dump() == log.meta.dump(), f"seed {seed}"


def test_a_create_writes_as_much_with_a_thousand_streams_as_with_ten() -> None:
    log, db = with_rows(), CountingDb()
    stored = StoredTable(log.meta, db)
    sizes = {}
    for number in range(1001):
        log.assign(f"S{number:04}", f"s.{number:04}")
        stored.write()
        sizes[number] = db.bytes
    assert sizes[1000] <= sizes[10] + 8


def test_a_table_that_begins_again_leaves_no_rows_of_streams_that_are_gone() -> None:
    """The log was lost: the table is empty until a snapshot of another node comes."""
    log, db = with_rows(), MemoryDb()
    stored = StoredTable(log.meta, db)
    for name in "AB":
        log.assign(name, name)
    stored.write()
    log.remove("A")
    elsewhere = log.meta.dump()
    stored.load()
    assert log.meta.get("$G", "A") is not None
    for record in (None, elsewhere):
        log.meta.load_dump(record)
        stored.write()
        assert loaded(db.values).dump() == log.meta.dump()
    assert [one.name for one in loaded(db.values)] == ["B"]


def test_a_snapshot_removes_the_rows_of_streams_that_are_gone() -> None:
    log, db = with_rows(), MemoryDb()
    stored = StoredTable(log.meta, db)
    for name in "ABC":
        log.assign(name, name)
    stored.write()
    ahead = AssignmentTable()
    ahead.load_dump(log.meta.dump())
    other = Log()
    other.meta = ahead
    other.entries = list(log.entries)
    other.remove("A")
    other.remove("B")
    other.assign("B", "other")  # a new group under the old name
    log.meta.load_dump(ahead.dump())
    stored.write()
    rows = {group for group, _ in db.files(META_GROUP).scan(ASSIGNED)}
    assert rows == {one.group for one in ahead}
    assert loaded(db.values).dump() == ahead.dump()


def test_the_record_of_an_earlier_version_becomes_rows_at_their_level() -> None:
    log = Log()
    for name in "ABC":
        log.assign(name, name)
    whole = log.meta.dump()
    db = MemoryDb({key(META_GROUP, RECORD, 0): whole})
    table = AssignmentTable()
    stored = StoredTable(table, db)
    stored.load()
    assert table.dump() == whole
    table.advanced(Index(4))
    stored.write()
    assert set(db.values) == {key(META_GROUP, RECORD, 0)}
    assert db.values[key(META_GROUP, RECORD, 0)] == table.dump(), "an earlier version can read it"
    table.apply(Index(5), encode_command(RaiseLevel(LEVEL_OF_ROWS)))
    stored.write()
    assert len(list(db.files(META_GROUP).scan(ASSIGNED))) == 3
    assert len(db.values[key(META_GROUP, RECORD, 0)]) < 100
    again = loaded(db.values)
    assert (again.applied, list(again), again.level) == (5, list(table), LEVEL_OF_ROWS)


def test_what_was_loaded_is_not_written_again() -> None:
    log, db = with_rows(), CountingDb()
    stored = StoredTable(log.meta, db)
    for number in range(100):
        log.assign(f"S{number}", f"s.{number}")
    stored.write()
    again = CountingDb(db.values)
    table = AssignmentTable()
    stored = StoredTable(table, again)
    stored.load()
    stored.write()
    assert again.bytes < 200


def test_a_damaged_head_or_row_raises() -> None:
    log, db = with_rows(), MemoryDb()
    log.assign("A", "a")
    StoredTable(log.meta, db).write()
    for place in db.values:
        with pytest.raises(msgspec.MsgspecError):
            loaded({**db.values, place: b"\xc1"})
