"""Checkpoints, restarts, snapshots and compaction of a message store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from rocksdict import Options, Rdict

from broker.store import persistence, segments
from broker.store.block.codec import Block, BlockBuilder, BlockDamaged
from broker.store.memory_db import MemoryDb
from broker.store.messages import MessageStore
from broker.store.persistence import compact
from broker.store.segments import BlockCache, View
from broker.store.state_db import StateDb
from broker.store.state_keys import BLOCK, KINDS, SUMMARY, key


@pytest.fixture(params=["memory", "rocksdb"])
def db(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Any]:
    if request.param == "memory":
        yield MemoryDb()
        return
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    database = Rdict(str(tmp_path), options, {"state": Options(raw_mode=True)})
    yield StateDb(database)
    database.close()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEAL_ROWS", 10)
    monkeypatch.setattr(persistence, "SEAL_ROWS", 10)


def filled(db: Any, count: int, *, group: int = 1) -> MessageStore:
    store = MessageStore(db.files(group))
    for k in range(count):
        store.append(b"s.%d" % (k % 3), b"", b"%d" % k, time_ns=k + 1)
    return store


def checkpoint(db: Any, store: MessageStore) -> persistence.StoreImage:
    batch = db.begin()
    persistence.checkpoint(store, batch)
    db.write(batch)
    persistence.written(store)
    return persistence.image(store)


def reopened(db: Any, state: persistence.StoreImage) -> MessageStore:
    store = MessageStore(db.files(1))
    persistence.load(store, state)
    return store


class CountingFiles:
    """Records which blocks are read."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.group, self.read = inner, inner.group, []  # type: ignore[var-annotated]

    def get(self, kind: bytes, seq: int) -> bytes | None:
        if kind == BLOCK:
            self.read.append(seq)
        result: bytes | None = self.inner.get(kind, seq)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_a_restart_reads_only_blocks_with_removed_rows_and_the_last(db: Any) -> None:
    store = filled(db, 45)
    store.remove(25)
    state = checkpoint(db, store)
    files = CountingFiles(db.files(1))
    loaded = MessageStore(files)
    persistence.load(loaded, state)
    assert files.read == [21, 41]
    assert persistence.digest(loaded) == persistence.digest(store)


def test_unwritten_blocks_can_be_read(db: Any) -> None:
    store = filled(db, 35)
    assert [m.data for m in map(store.get, (1, 15, 35)) if m] == [b"0", b"14", b"34"]
    assert persistence.unwritten_bytes(store) > 0
    checkpoint(db, store)
    assert persistence.unwritten_bytes(store) == 0
    assert [m.data for m in map(store.get, (1, 15, 35)) if m] == [b"0", b"14", b"34"]


def test_a_checkpoint_is_due_when_enough_is_unwritten() -> None:
    store = MessageStore()
    assert not persistence.needs_checkpoint(store)
    while not persistence.needs_checkpoint(store):
        store.append(b"s", b"", b"x" * 100_000, time_ns=1)
    assert store.bytes > persistence.CHECKPOINT_BYTES
    assert store.bytes <= persistence.CHECKPOINT_BYTES + segments.SEAL_BYTES + 100_100
    assert store.segments.tail is None, "just then the growing block is small"
    while not persistence.overdue(store):
        store.append(b"s", b"", b"x" * 100_000, time_ns=1)
    assert store.bytes <= 4 * persistence.CHECKPOINT_BYTES + segments.SEAL_BYTES + 100_100


@pytest.mark.parametrize(("rows_together", "expected"), [(10, 8), (20, 4), (2048, 2)])
def test_work_ahead_does_the_work_of_the_checkpoint(
    db: Any, monkeypatch: pytest.MonkeyPatch, rows_together: int, expected: int
) -> None:
    """Two parts for each of the four sealed blocks of ten rows; small blocks share them."""
    monkeypatch.setattr(persistence, "ROWS_PER_PART", rows_together)
    one, other = filled(db, 45), filled(db, 45, group=2)
    parts = 0
    while persistence.work_ahead(one):
        parts += 1
        assert parts <= expected
    assert parts == expected
    batches = MemoryDb(), MemoryDb()
    for memory, store in zip(batches, (one, other), strict=True):
        batch = memory.begin()
        persistence.checkpoint(store, batch)
        memory.write(batch)
    assert [k[8:] for k in batches[0].values] == [k[8:] for k in batches[1].values]
    assert list(batches[0].values.values()) == list(batches[1].values.values())


def test_work_ahead_is_repeated_for_a_block_with_an_erased_message(db: Any) -> None:
    store = filled(db, 25)
    while persistence.work_ahead(store):
        continue
    store.erase(5)
    assert persistence.work_ahead(store)
    state = checkpoint(db, store)
    assert persistence.digest(reopened(db, state)) == persistence.digest(store)


def test_an_unchanged_store_writes_nothing(db: Any) -> None:
    store = filled(db, 25)
    checkpoint(db, store)
    assert persistence.checkpoint(store, db.begin()) == 0


def test_dropped_blocks_are_deleted_from_disk(db: Any) -> None:
    store = filled(db, 30)
    checkpoint(db, store)
    store.drop_before(21)
    state = checkpoint(db, store)
    assert [seq for seq, _ in db.files(1).scan(BLOCK)] == [21]
    assert persistence.digest(reopened(db, state)) == persistence.digest(store)
    db.wipe(1)
    assert not [seq for kind in KINDS for seq, _ in db.files(1).scan(kind)]


def test_a_snapshot_is_not_changed_by_writes_while_it_is_sent(db: Any) -> None:
    store = filled(db, 38)
    store.remove(17)
    state, before = checkpoint(db, store), persistence.digest(store)
    chunks = persistence.snapshot(store)
    first = next(chunks)
    store.drop_before(35)
    store.append(b"s.new", b"", b"", time_ns=99)
    checkpoint(db, store)
    other = filled(db, 13, group=2)  # its own content is replaced
    checkpoint(db, other)
    db.wipe(2)
    persistence.restore(other, state, [first, *chunks])
    assert persistence.digest(other) == before
    batch = db.begin()
    persistence.checkpoint(other, batch)
    db.write(batch)
    persistence.written(other)
    loaded = MessageStore(db.files(2))
    persistence.load(loaded, state)
    assert persistence.digest(loaded) == before


def test_reading_a_damaged_block_raises(db: Any) -> None:
    store = filled(db, 30)
    state = checkpoint(db, store)
    raw = bytearray(db.files(1).get(BLOCK, 11) or b"")
    raw[-9] ^= 1
    batch = db.begin()
    batch.put(key(1, BLOCK, 11), bytes(raw))
    db.write(batch)
    loaded = reopened(db, state)
    assert loaded.get(5) is not None
    with pytest.raises(BlockDamaged):
        loaded.get(15)


def test_counters_that_do_not_match_the_blocks_are_refused(db: Any) -> None:
    store = filled(db, 30)
    state = checkpoint(db, store)
    store.drop_before(21)
    checkpoint(db, store)
    with pytest.raises(BlockDamaged):
        reopened(db, state)


def test_groups_are_independent(db: Any) -> None:
    first, second = filled(db, 12, group=1), filled(db, 15, group=2)
    state = checkpoint(db, first)
    checkpoint(db, second)
    assert persistence.digest(reopened(db, state)) == persistence.digest(first)
    assert persistence.digest(first) != persistence.digest(second)


def test_compaction_keeps_stored_rows_and_frees_the_rest(db: Any) -> None:
    store = MessageStore(db.files(1))
    for k in range(30):
        store.append(b"s.%d" % k, b"", b"x" * 500, time_ns=k + 1)
    for seq in range(1, 11):
        if seq != 4:
            store.remove(seq)
    before = persistence.digest(store)
    checkpoint(db, store)
    assert compact(store)
    assert not compact(store)
    state = checkpoint(db, store)
    assert len(db.files(1).get(BLOCK, 1) or b"") < 1000
    assert persistence.digest(store) == before
    loaded = reopened(db, state)
    assert persistence.digest(loaded) == before
    assert loaded.subject_state(b"s.3") == (1, 4, 4)


def test_the_cache_is_bounded_by_bytes() -> None:
    builder = BlockBuilder(1)
    builder.append(b"s", b"", b"x" * 1000)
    views = [View(Block(builder.build())) for _ in range(10)]
    cache = BlockCache(max_bytes=8_000)
    for number, view in enumerate(views):
        cache.put(1, number, view)
    kept = [number for number in range(10) if cache.get(1, number) is not None]
    assert kept == [7, 8, 9]


def test_damage_is_reported_to_the_owner_of_the_data_also_by_a_snapshot(db: Any) -> None:
    store = reopened(db, checkpoint(db, filled(db, 30)))
    first = store.segments.all[0]
    raw = bytearray(db.files(1).get(BLOCK, first.first_seq))
    raw[len(raw) // 2] ^= 1
    db.change(lambda batch: batch.put(key(1, BLOCK, first.first_seq), bytes(raw)))
    store.segments.cache.discard_group(1)
    told: list[int] = []
    store.segments.cache.on_damage = lambda group, _error: told.append(group)
    with pytest.raises(BlockDamaged):
        store.segments.view(first)
    with pytest.raises(BlockDamaged):
        list(persistence.snapshot(store))  # or a peer would be sent, and refuse, what is damaged
    assert told == [1, 1]


def test_a_summary_that_is_missing_is_reported_to_the_owner_of_the_data(db: Any) -> None:
    store = reopened(db, checkpoint(db, filled(db, 30)))
    first = store.segments.all[0]
    db.change(lambda batch: batch.delete(key(1, SUMMARY, first.first_seq)))
    first.subjects = first.view = None  # as when others were used since
    store.segments.cache.discard_group(1)
    told: list[int] = []
    store.segments.cache.on_damage = lambda group, _error: told.append(group)
    with pytest.raises(BlockDamaged):
        store.segments.subjects(first)
    assert told == [1]


def test_sealed_blocks_are_compressed_where_the_stream_wants_it(db: Any) -> None:
    store = MessageStore(db.files(1))
    store.segments.packs = lambda: True
    body = b'{"name": "value", "text": "words words words words words words words words"}'
    for k in range(45):
        store.append(b"s.%d" % (k % 3), b"", body, time_ns=k + 1)
        while k == 25 and persistence.work_ahead(store):  # some blocks are prepared, others not
            pass
    expected = persistence.digest(store)
    state = checkpoint(db, store)
    stored = dict(db.files(1).scan(BLOCK))
    assert [len(raw) < 5 * len(body) for raw in stored.values()] == [True] * 4 + [False], "growing"
    again = reopened(db, state)
    assert persistence.digest(again) == expected
    assert [again.get(seq).data for seq in (1, 25, 45)] == [body] * 3  # type: ignore[union-attr]
    # Snapshots are plain, so that members of other versions can read them.
    chunks = list(persistence.snapshot(again))
    assert all(body in chunk for chunk in chunks)
    copy = MessageStore(MemoryDb().files(1))
    persistence.restore(copy, state, chunks)
    assert persistence.digest(copy) == expected


def test_rewritten_blocks_are_compressed_again(db: Any) -> None:
    store = MessageStore(db.files(1))
    store.segments.packs = lambda: True
    for k in range(40):
        store.append(b"s", b"", b"x" * 200, time_ns=k + 1)
    while persistence.work_ahead(store):
        pass
    store.erase(5)  # changes a block that was prepared
    for seq in range(11, 20):
        store.remove(seq)
    assert compact(store)
    digest = persistence.digest(store)
    again = reopened(db, checkpoint(db, store))
    assert persistence.digest(again) == digest
    assert again.get(5) is None


@pytest.mark.parametrize("bad", [b"JRZ1", b"JRZ1" + b"\xff" * 40, b"JRZ1\x04\0\0\0" + b"\0" * 20])
def test_a_damaged_compressed_block_is_damage(db: Any, bad: bytes) -> None:
    state = checkpoint(db, filled(db, 30))
    batch = db.begin()
    batch.put(key(1, BLOCK, 11), bad)
    db.write(batch)
    again = reopened(db, state)
    with pytest.raises(BlockDamaged, match="from sequence 11 on"):
        again.get(15)
