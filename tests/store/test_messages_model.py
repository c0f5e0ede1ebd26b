"""MessageStore against a dict as model: random operations, checkpoints and reloads."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from rocksdict import Options, Rdict

from broker.store import messages, persistence, segments
from broker.store.block.codec import Block, BlockBuilder
from broker.store.block.columns import FILE_SIZING, MEMORY_SIZING
from broker.store.memory_db import MemoryDb
from broker.store.messages import MessageStore
from broker.store.persistence import compact
from broker.store.segments import BlockCache
from broker.store.state_db import StateDb
from broker.subjects import finish, matches

SUBJECTS = [b"a", b"b", b"a.x", b"a.y", b"a.x.z", b"kv.1", b"kv.2"]
FILTERS: list[tuple[bytes, ...]] = [
    (), (b"a",), (b"a.*",), (b"a.>",), (b"b", b"kv.*"), (b"kv.2", b"a.x.z"), (b">",), (b"none.*",),
]  # fmt: skip

message = st.tuples(
    st.sampled_from(SUBJECTS),
    st.sampled_from([b"", b"NATS/1.0\r\nk: v\r\n\r\n"]),
    st.binary(max_size=6),
)


@dataclass(slots=True)
class Kept:
    time_ns: int
    subject: bytes
    headers: bytes
    data: bytes


class Twin:
    """The model: messages in a dict, every query a loop."""

    def __init__(self, *, memory: bool) -> None:
        self.memory = memory
        self.kept: dict[int, Kept] = {}
        self.last_seq = 0
        self.floor = 1

    @property
    def first_seq(self) -> int:
        return min(self.kept, default=self.last_seq + 1)

    @property
    def bytes(self) -> int:
        total = 0
        for m in self.kept.values():
            total += len(m.subject) + len(m.headers) + len(m.data) + (16 if self.memory else 30)
            if m.headers and not self.memory:
                total += 4
        return total

    def select(self, filters: tuple[bytes, ...], start: int = 0) -> list[int]:
        return [
            seq
            for seq, m in sorted(self.kept.items())
            if seq >= start and (not filters or any(matches(m.subject, f) for f in filters))
        ]

    def drop(self, seqs: list[int]) -> int:
        for seq in seqs:
            del self.kept[seq]
        return len(seqs)


class StoreModel(RuleBasedStateMachine):
    rocks = False

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp() if self.rocks else ""
        self.database: Any = None
        if self.rocks:
            options = Options(raw_mode=True)
            options.create_if_missing(True)
            options.create_missing_column_families(True)
            columns = {"state": Options(raw_mode=True)}
            self.database = Rdict(self.directory, options=options, column_families=columns)
        self.db: Any = StateDb(self.database) if self.rocks else MemoryDb()
        self.clock = 1_000

    def teardown(self) -> None:
        if self.rocks:
            self.database.close()
            shutil.rmtree(self.directory)

    def open(self) -> MessageStore:
        sizing = MEMORY_SIZING if self.twin.memory else FILE_SIZING
        store = MessageStore(self.db.files(7), sizing=sizing, cache=BlockCache(2_000))
        store.remember_trails(self.trail_max)
        return store

    @initialize(memory=st.booleans(), tracking=st.booleans(), trail_max=st.sampled_from([0, 2, 9]))
    def begin(self, memory: bool, tracking: bool, trail_max: int) -> None:
        self.trail_max = trail_max
        self.twin = Twin(memory=memory)
        self.store = self.open()
        self.store.track_removals(on=tracking)
        self.tracking = tracking
        self.checkpointed = False

    # -- operations -------------------------------------------------------------------------------

    @rule(messages=st.lists(message, min_size=1, max_size=9))
    def append_block(self, messages: list[tuple[bytes, bytes, bytes]]) -> None:
        builder = BlockBuilder()
        for subject, headers, data in messages:
            builder.append(subject, headers, data)
        self.clock += 3
        first = self.store.append_block(Block(builder.build()), time_ns=self.clock)
        assert first == self.twin.last_seq + 1
        for subject, headers, data in messages:
            self.twin.last_seq += 1
            self.twin.kept[self.twin.last_seq] = Kept(self.clock, subject, headers, data)

    @rule(message=message)
    def append(self, message: tuple[bytes, bytes, bytes]) -> None:
        self.clock += 1
        assert self.store.append(*message, time_ns=self.clock) == self.twin.last_seq + 1
        self.twin.last_seq += 1
        self.twin.kept[self.twin.last_seq] = Kept(self.clock, *message)

    @rule(
        rows=st.lists(st.tuples(st.integers(1, 4), message), min_size=1, max_size=5),
        back=st.integers(0, 3),
    )
    def mirror(self, rows: list[tuple[int, tuple[bytes, bytes, bytes]]], back: int) -> None:
        seq = max(self.twin.last_seq - back, 0)
        builder = BlockBuilder()
        stored = 0
        for step, content in rows:
            seq += step
            self.clock += 1
            builder.append(*content, time_ns=self.clock, seq=seq)
            if seq > self.twin.last_seq:
                self.twin.kept[seq] = Kept(self.clock, *content)
                self.twin.last_seq = seq
                stored += 1
        assert self.store.append_sequenced(Block(builder.build())) == stored

    @rule(step=st.integers(0, 5))
    def skip(self, step: int) -> None:
        self.store.skip_to(self.twin.last_seq + 1 + step)
        self.twin.last_seq += step

    @rule(data=st.data(), erase=st.booleans())
    def remove(self, data: st.DataObject, erase: bool) -> None:
        seq = data.draw(st.integers(0, self.twin.last_seq + 1))
        done = self.store.erase(seq) if erase else self.store.remove(seq)
        assert done == (self.twin.kept.pop(seq, None) is not None)

    @rule(data=st.data())
    def remove_many(self, data: st.DataObject) -> None:
        seqs = data.draw(st.sets(st.integers(0, self.twin.last_seq + 1), max_size=12))
        expected = self.twin.drop([seq for seq in seqs if seq in self.twin.kept])
        assert self.store.remove_many(sorted(seqs)) == expected

    @rule(data=st.data())
    def drop_before(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(0, self.twin.last_seq + 2))
        expected = self.twin.drop([s for s in self.twin.kept if s < seq])
        assert self.store.drop_before(seq) == expected

    @rule(data=st.data(), subject=st.sampled_from([None, b">", b"a.*", b"b", b"a.>", b"none"]))
    def purge(self, data: st.DataObject, subject: bytes | None) -> None:
        up_to = data.draw(st.none() | st.integers(0, self.twin.last_seq + 4))
        keep = 0 if up_to is not None else data.draw(st.integers(0, 4))
        filters = (subject,) if subject else ()
        doomed = [s for s in self.twin.select(filters) if up_to is None or s < up_to]
        doomed = doomed[: max(len(doomed) - keep, 0)]
        expected = self.twin.drop(doomed)
        assert self.store.purge(subject, up_to, keep) == expected
        whole = subject in (None, b">")
        if whole and up_to is not None and not self.twin.kept:
            self.twin.last_seq = max(self.twin.last_seq, up_to - 1)

    @rule(subject=st.sampled_from(SUBJECTS), keep=st.integers(1, 3))
    def drop_oldest_of(self, subject: bytes, keep: int) -> None:
        seqs = self.twin.select((subject,))
        expected = self.twin.drop(seqs[: max(len(seqs) - keep, 0)])
        assert self.store.drop_oldest_of(subject, keep) == expected

    @rule(count=st.integers(0, 4))
    def drop_oldest(self, count: int) -> None:
        self.store.drop_oldest(count)
        self.twin.drop(sorted(self.twin.kept)[:count])

    @rule(data=st.data())
    def drop_to_size(self, data: st.DataObject) -> None:
        bytes_max = data.draw(st.integers(0, self.twin.bytes + 10))
        self.store.drop_to_size(bytes_max)
        while self.twin.bytes > bytes_max:
            del self.twin.kept[self.twin.first_seq]

    @rule(messages=st.lists(message, min_size=1, max_size=4), keep=st.integers(1, 3))
    def append_within_limit(self, messages: list[tuple[bytes, bytes, bytes]], keep: int) -> None:
        self.append_block(messages)
        for subject in dict.fromkeys(subject for subject, _, _ in messages):
            self.drop_oldest_of(subject, keep)

    @rule()
    def seal(self) -> None:
        self.store.segments.seal()

    @rule()
    def compact(self) -> None:
        before = persistence.digest(self.store)
        compact(self.store)
        assert persistence.digest(self.store) == before

    @rule()
    def checkpoint(self) -> None:
        batch = self.db.begin()
        persistence.checkpoint(self.store, batch)
        self.db.write(batch)
        persistence.written(self.store)
        self.image = persistence.image(self.store)
        assert persistence.unwritten_bytes(self.store) == 0

    @rule()
    def reload(self) -> None:
        self.checkpoint()
        before = persistence.digest(self.store)
        self.store = self.open()
        persistence.load(self.store, self.image)
        self.store.track_removals(on=self.tracking)
        assert persistence.digest(self.store) == before

    @rule(same=st.booleans())
    def move_by_snapshot(self, same: bool) -> None:
        before = persistence.digest(self.store)
        image, chunks = persistence.image(self.store), list(persistence.snapshot(self.store))
        self.db.wipe(7)
        if not same:
            self.store = self.open()
        persistence.restore(self.store, image, chunks)
        self.store.track_removals(on=self.tracking)
        self.checkpoint()
        assert persistence.digest(self.store) == before

    # -- queries ----------------------------------------------------------------------------------

    @rule(filters=st.sampled_from(FILTERS), data=st.data())
    def filtered(self, filters: tuple[bytes, ...], data: st.DataObject) -> None:
        store, twin = self.store, self.twin
        start = data.draw(st.integers(0, twin.last_seq + 2))
        seqs = twin.select(filters, start)
        assert store.next_matching(filters, start) == (seqs[0] if seqs else 0)
        assert store.count_matching(filters, start) == len(seqs)
        everything = twin.select(filters)
        last = finish(store.last_matching_steps(filters))
        assert last == (everything[-1] if everything else 0)
        limit = data.draw(st.integers(1, 6))
        limit_bytes = data.draw(st.sampled_from([1, 30, 1000]))
        expected, size = [], 0
        for seq in seqs[:limit]:
            size += len(twin.kept[seq].headers) + len(twin.kept[seq].data)
            if expected and size > limit_bytes:
                break
            expected.append(seq)
        found, at = [], start
        while not found and at <= store.last_seq:
            taken = store.examine(filters, at, limit, limit_bytes)
            assert at < taken.next_seq
            found, at = (
                [rows.seq(i) for rows, rows_taken in taken.groups for i in rows_taken],
                (taken.next_seq),
            )
        assert found == expected[: len(found)]
        assert bool(found) == bool(expected)
        assert len(found) == len(expected) or at <= expected[len(found)]

    @rule(data=st.data())
    def by_time(self, data: st.DataObject) -> None:
        time_ns = data.draw(st.integers(990, self.clock + 2))
        found = [s for s, m in sorted(self.twin.kept.items()) if m.time_ns >= time_ns]
        assert self.store.first_at_time(time_ns) == (found[0] if found else 0)
        assert self.store.expired_before(time_ns - 1) == (
            found[0] if found else self.twin.last_seq + 1
        )

    @rule(data=st.data())
    def blocks(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, self.twin.last_seq + 1))
        last = data.draw(st.integers(first, self.twin.last_seq + 1))
        found = []
        for raw in self.store.blocks(first, last):
            block = Block(raw)
            found += [block.seq(i) for i in range(block.rows)]
        assert found == [s for s in sorted(self.twin.kept) if first <= s <= last]
        gone = [s for a, b in self.store.deleted_ranges(first, last) for s in range(a, b + 1)]
        low = max(first, self.twin.first_seq)
        high = min(last, self.twin.last_seq)
        assert gone == [s for s in range(low, high + 1) if s not in self.twin.kept]

    @precondition(lambda self: self.tracking)
    @rule()
    def journal(self) -> None:
        for first, last in self.store.take_removals():
            assert not any(first <= seq <= last for seq in self.twin.kept)

    @invariant()
    def numbers_agree(self) -> None:
        if not hasattr(self, "store"):
            return
        store, twin = self.store, self.twin
        assert store.last_seq == twin.last_seq
        assert store.messages == len(twin.kept)
        assert store.bytes == twin.bytes
        assert store.first_seq == twin.first_seq
        subjects: dict[bytes, list[int]] = {}
        for seq, m in sorted(twin.kept.items()):
            subjects.setdefault(m.subject, []).append(seq)
        assert store.num_subjects == len(subjects)
        assert store.num_deleted == twin.last_seq + 1 - twin.first_seq - len(twin.kept)
        assert all(segment.live for segment in store.segments.all)

    @rule()
    def everything_agrees(self) -> None:
        store, twin = self.store, self.twin
        for seq in range(twin.last_seq + 2):
            found, kept = store.get(seq), twin.kept.get(seq)
            assert store.has(seq) == (kept is not None)
            if kept is None:
                assert found is None
            else:
                assert found is not None
                assert (found.time_ns, found.subject, found.headers, found.data) == (
                    kept.time_ns, kept.subject, kept.headers, kept.data,
                )  # fmt: skip
        for subject in SUBJECTS:
            seqs = twin.select((subject,))
            state = store.subject_state(subject)
            assert state == ((len(seqs), seqs[0], seqs[-1]) if seqs else None)
        for pattern in (b"a.*", b">", b"*", b"kv.>", b"a"):
            stored = {m.subject for m in twin.kept.values()}
            expected = sorted(subject for subject in stored if matches(subject, pattern))
            assert list(store.subjects_matching(pattern)) == expected
        gone = [s for a, b in store.deleted_ranges() for s in range(a, b + 1)]
        assert gone == [s for s in range(twin.first_seq, twin.last_seq + 1) if s not in twin.kept]
        first = twin.kept.get(twin.first_seq)
        assert store.first_time == (first.time_ns if first else 0)


class RocksStoreModel(StoreModel):
    rocks = True


@pytest.mark.parametrize(("model", "examples"), [(StoreModel, 150), (RocksStoreModel, 25)])
def test_store_agrees_with_a_dict(
    model: type[StoreModel], examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEAL_ROWS", 6)
    monkeypatch.setattr(persistence, "SEAL_ROWS", 6)
    monkeypatch.setattr(segments, "SUBJECTS_HELD_MAX", 2)
    monkeypatch.setattr(messages, "WHOLE_BYTES", 250)  # a block of five or more rows
    run_state_machine_as_test(
        model,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
