"""Blocks in files beside the database: against a model, through power failures and damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import pytest

from broker.store import state_db
from broker.store.block.block_format import BlockDamaged
from broker.store.encryption.directory_cipher import DirectoryCipher
from broker.store.state_db import RocksBatch, StaleBatch, StateDb
from broker.store.state_keys import BLOCK, PLACES, RECORD, key
from broker.store.values.value_files import ValueFiles, WrittenValues
from chaos.sim.files import SimLogFiles
from chaos.sim.world.database import DatabaseFiles, SimDatabase, SimWriteBatch

FILE_BYTES = 16 << 10
GROUPS = (3, 4)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_db, "FILE_BYTES_MIN", 100)


@dataclass
class Disk:
    database: DatabaseFiles = field(default_factory=DatabaseFiles)
    files: SimLogFiles = field(default_factory=SimLogFiles)

    def open(self, cipher: DirectoryCipher | None = None) -> StateDb:
        state = StateDb(
            cast(Any, SimDatabase(self.database, lambda: True)),
            new_batch=cast(Any, SimWriteBatch),
            cipher=cipher,
            values=ValueFiles(self.files, file_bytes=FILE_BYTES),
        )
        state.in_files = lambda: True
        return state

    def lose_power(self, rng: Random) -> None:
        self.database.crash(rng)
        self.files.lose_power(rng)

    def die(self, rng: Random) -> None:
        self.database.crash(rng)
        self.files.die()


def written(state: StateDb, batch: RocksBatch) -> WrittenValues:
    assert state.values is not None
    return state.values.write(list(batch.large.items()))


def put(state: StateDb, seq: int, value: bytes, group: int = 3) -> None:
    batch = state.begin()
    batch.put_sealed(key(group, BLOCK, seq), value)
    state.write(batch, written(state, batch))


def inline(disk: Disk) -> set[int]:
    return {
        int.from_bytes(raw_key[9:], "big")
        for raw_key in disk.database.live["state"].values
        if raw_key[8:9] == BLOCK and not raw_key.startswith(PLACES)
    }


@pytest.mark.parametrize("cipher", [None, DirectoryCipher(bytes(32), "aes")])
def test_a_large_sealed_block_is_in_a_file_and_a_small_or_growing_one_is_not(
    cipher: DirectoryCipher | None,
) -> None:
    disk = Disk()
    state = disk.open(cipher)
    batch = state.begin()
    batch.put(key(3, BLOCK, 1), b"g" * 500)
    batch.put_sealed(key(3, BLOCK, 2), b"s" * 99)
    batch.put_sealed(key(3, BLOCK, 3), b"l" * 500)
    state.write(batch, written(state, batch))
    for now in (state, disk.open(cipher)):
        read = now.files(3).get
        assert [read(BLOCK, 1), read(BLOCK, 2), read(BLOCK, 3)] == [
            b"g" * 500,
            b"s" * 99,
            b"l" * 500,
        ]
        assert now.files(3).frozen().get(BLOCK, 3) == b"l" * 500
    assert inline(disk) == {1, 2}
    stored = b"".join(bytes(inode.data) for inode in disk.files._names.values())
    assert (b"l" * 500 in stored) == (cipher is None)


def test_a_block_is_read_from_where_it_was_written_last() -> None:
    disk = Disk()
    state = disk.open()
    assert state.values is not None
    read = state.files(3).get
    change = state.change
    put(state, 1, b"a" * 200)
    change(lambda batch: batch.put(key(3, BLOCK, 1), b"b" * 200))
    assert read(BLOCK, 1) == b"b" * 200
    put(state, 1, b"c" * 200)
    assert read(BLOCK, 1) == b"c" * 200
    assert inline(disk) == set()
    change(lambda batch: batch.put_sealed(key(3, BLOCK, 1), b"d" * 200))  # cannot wait
    assert read(BLOCK, 1) == b"d" * 200
    put(state, 1, b"e" * 200)
    change(lambda batch: batch.delete(key(3, BLOCK, 1)))
    assert read(BLOCK, 1) is None
    assert state.values.ledger.alive == 0
    put(state, 1, b"f" * 200)
    put(state, 1, b"f" * 200, group=4)
    state.wipe(3)
    assert read(BLOCK, 1) is None
    assert state.files(4).get(BLOCK, 1) == b"f" * 200
    assert [raw for raw in disk.database.live["state"].values] == [PLACES + key(4, BLOCK, 1)]


def test_a_snapshot_shows_blocks_that_are_deleted_and_moved_meanwhile() -> None:
    disk = Disk()
    state = disk.open()
    assert state.values is not None
    for seq in range(8):
        put(state, seq, bytes([seq]) * 3000)
    frozen = state.files(3).frozen()
    empty(state)
    for seq in range(8):
        state.change(lambda batch, seq=seq: batch.delete(key(3, BLOCK, seq)))
    state.values.close()
    state.flush()
    assert [frozen.get(BLOCK, seq) for seq in range(8)] == [bytes([n]) * 3000 for n in range(8)]
    del frozen
    state.flush()
    assert disk.files.names() == []


def test_a_batch_from_before_the_store_was_reopened_is_refused() -> None:
    disk = Disk()
    state = disk.open()
    batch = state.begin()
    batch.put_sealed(key(3, BLOCK, 1), b"l" * 500)
    done = written(state, batch)
    state.take(cast(Any, SimDatabase(disk.database, lambda: True)))
    with pytest.raises(StaleBatch):
        state.write(batch, done)
    state.moved([(key(3, BLOCK, 1), done.places[0])], done)
    assert state.files(3).get(BLOCK, 1) is None


def test_below_the_level_blocks_stay_in_the_database() -> None:
    disk = Disk()
    state = disk.open()
    state.in_files = lambda: False
    batch = state.begin()
    batch.put_sealed(key(3, BLOCK, 1), b"l" * 500)
    assert not batch.large
    state.write(batch)
    assert inline(disk) == {1}
    assert not disk.files.used


def test_references_that_cannot_be_read_cost_only_their_groups() -> None:
    disk = Disk()
    state = disk.open()
    for group in GROUPS:
        for seq in range(3):
            put(state, seq, bytes([seq + 1]) * 300, group)
    state.flush()
    kept = disk.files.names()
    for image in (disk.database.live, disk.database.durable):
        image["state"].damaged.add(PLACES + key(3, BLOCK, 1))
    state = disk.open()
    assert disk.files.names() == kept
    assert [state.files(4).get(BLOCK, seq) is not None for seq in range(3)] == [True] * 3
    assert [state.files(3).get(BLOCK, seq) is not None for seq in range(3)] == [True, False, False]
    state.change(lambda batch: batch.put(key(3, BLOCK, 2), b"new"))
    state.wipe(4)
    state.flush()
    assert disk.files.names() == kept
    state.wipe(3)
    state.flush()
    disk.open()
    assert disk.files.names() == [], "the next start knows all references again"


def empty(state: StateDb, wait: Callable[[], None] = lambda: None) -> None:
    """As BlockMoves does."""
    assert state.values is not None
    for file in state.values.with_garbage():
        copied, done = state.values.copy(state.values.living_in(file))
        wait()
        state.moved(copied, done)


class Work:
    """Random checkpoints, some of which wait, with flushes, moves and deletions between them."""

    def __init__(self, disk: Disk, rng: Random) -> None:
        self.disk, self.rng = disk, rng
        self.model: dict[tuple[int, int], bytes] = {}
        # What a crash may leave: the model after every write since the last flush.
        self.history = [dict(self.model)]
        self.count = 0
        self.waiting: tuple[RocksBatch, dict[tuple[int, int], bytes], Any] | None = None
        self.state = disk.open()

    def step(self) -> None:
        self.rng.choice(
            (
                self.checkpoint,
                self.checkpoint,
                self.begin,
                self.end,
                self.flush,
                self.move,
                self.wipe,
                self.check,
            )
        )()

    def _fill(self) -> tuple[RocksBatch, dict[tuple[int, int], bytes]]:
        batch, model = self.state.begin(), dict(self.model)
        self.count += 1
        for _ in range(self.rng.randint(1, 4)):
            at = (self.rng.choice(GROUPS), self.rng.randrange(6))
            raw_key = key(at[0], BLOCK, at[1])
            value = self.count.to_bytes(4, "big") * self.rng.choice((5, 100, 900))
            match self.rng.randrange(5):
                case 0:
                    batch.delete(raw_key)
                    model.pop(at, None)
                    continue
                case 1:
                    batch.put(raw_key, value)
                case _:
                    batch.put_sealed(raw_key, value)
            model[at] = value
        batch.put(key(GROUPS[0], RECORD, 0), self.count.to_bytes(4, "big"))
        model[0, 0] = self.count.to_bytes(4, "big")
        return batch, model

    def _wrote(self, model: dict[tuple[int, int], bytes]) -> None:
        self.model = model
        self.history.append(dict(model))

    def checkpoint(self) -> None:
        if self.waiting is None:
            batch, model = self._fill()
            self.state.write(batch, written(self.state, batch) if batch.large else None)
            self._wrote(model)

    def begin(self) -> None:
        if self.waiting is None:
            batch, model = self._fill()
            self.waiting = batch, model, written(self.state, batch)

    def end(self) -> None:
        """The blocks are on disk, or that was not waited for."""
        if self.waiting is None:
            return
        (batch, model, done), self.waiting = self.waiting, None
        if self.rng.random() < 0.7:
            self.state.write(batch, done)
        else:
            self.state.write(batch)
            assert self.state.values is not None
            self.state.values.settle(done)
        self._wrote(model)

    def flush(self) -> None:
        self.state.flush()
        self.history = [dict(self.model)]

    def move(self) -> None:
        before = len(self.history)
        empty(self.state, self.checkpoint if self.rng.random() < 0.3 else lambda: None)
        if len(self.history) == before:
            self.history.append(dict(self.model))  # references alone were written

    def wipe(self) -> None:
        if self.waiting is None and self.rng.random() < 0.3:
            group = self.rng.choice(GROUPS)
            self.state.wipe(group)
            self._wrote({at: v for at, v in self.model.items() if at[0] not in (group, 0)} | (
                {(0, 0): self.model[0, 0]} if group != GROUPS[0] and (0, 0) in self.model else {}
            ))  # fmt: skip

    def read(self) -> dict[tuple[int, int], bytes]:
        found = {}
        for group in GROUPS:
            files = self.state.files(group)
            for seq in range(6):
                value = files.get(BLOCK, seq)
                if value is not None:
                    found[group, seq] = value
        record = self.state.files(GROUPS[0]).get(RECORD, 0)
        return found | ({} if record is None else {(0, 0): record})

    def check(self) -> None:
        assert self.read() == self.model

    def reopened(self) -> None:
        """After a crash."""
        self.waiting = None
        self.state = self.disk.open()
        found = self.read()
        assert found in self.history, "neither what was flushed nor a later write"
        self.model = found
        self.history = [dict(found)]


def crash_rounds(seed: int, steps: int = 40) -> None:
    rng = Random(seed)
    disk = Disk()
    work = Work(disk, rng)
    for _ in range(4):
        for _ in range(rng.randint(1, steps)):
            work.step()
        (disk.lose_power if rng.random() < 0.7 else disk.die)(rng)
        work.reopened()
    assert work.state.values is not None
    work.state.values.close()
    work.state.flush()
    used = {place.file for group in GROUPS
            for place in work.state.values.of_owner(key(group, BLOCK, 0)[:8]).values()}  # fmt: skip
    assert len(disk.files.names()) == len(used)


@pytest.mark.parametrize("seeds", [range(start, start + 25) for start in range(0, 100, 25)])
def test_random_work_survives_crashes(seeds: range) -> None:
    for seed in seeds:
        crash_rounds(seed)


def test_power_fails_at_every_call() -> None:
    """The simulated machine stops in the middle of a write, a sync, a removal."""

    class PowerFailure(Exception):
        pass

    for seed in (1, 2):
        for stop in range(1, 200, 3):
            rng = Random(seed)
            disk = Disk()
            work = Work(disk, rng)

            def fault(
                _operation: str, _name: str, files: SimLogFiles = disk.files, stop: int = stop
            ) -> OSError | None:
                if files.calls == stop:
                    raise PowerFailure
                return None

            disk.files.fault = fault
            try:
                for _ in range(40):
                    pending = work.waiting
                    work.step()
            except PowerFailure:
                if pending is not None:
                    work.history.append(pending[1])
            disk.files.fault = lambda _operation, _name: None
            disk.lose_power(rng)
            work.reopened()


@pytest.mark.parametrize("bug", ["reference before sync", "removal before flush"])
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "reference before sync":
        monkeypatch.setattr(ValueFiles, "_sync", lambda _self, _growing: None)
    else:

        def changed(self: ValueFiles, places: Any, original: Any = ValueFiles.changed) -> None:
            original(self, places)
            self.remove(self.doomed())

        monkeypatch.setattr(ValueFiles, "changed", changed)
    found = 0
    for seed in range(30):
        try:
            crash_rounds(seed)
        except (AssertionError, BlockDamaged):
            found += 1
    assert found


def test_damage_of_a_file_is_met_by_those_who_read_it_and_by_nobody_else() -> None:
    for seed in range(60):
        rng = Random(seed)
        disk = Disk()
        state = disk.open()
        for seq in range(12):
            put(state, seq, bytes([seq + 1]) * 3000)
        state.flush()
        disk.files.damage(rng)
        state = disk.open()
        for seq in range(12):
            try:
                value = state.files(3).get(BLOCK, seq)
            except BlockDamaged:
                continue
            assert value is not None
            assert len(value) == 3000
        put(state, 20, b"n" * 300)
        empty(state)
        state.flush()
        assert state.files(3).get(BLOCK, 20) == b"n" * 300
