"""Files of values on a simulated disk: order, removal, damage, failures at every call."""

from __future__ import annotations

import errno
import gc
from pathlib import Path
from random import Random
from zlib import crc32

import pytest

from broker.store.values.ledger import ValuePlace
from broker.store.values.value_files import ValueDamaged, ValueFiles, WrittenValues
from chaos.sim.files import SimLogFiles
from raft.store.segments.files import DiskFiles, LogFiles

FILE_BYTES = 16 << 10


def key(number: int, owner: int = 7) -> bytes:
    return owner.to_bytes(8, "big") + b"b" + number.to_bytes(8, "big")


def value(number: int, size: int = 3000) -> bytes:
    return bytes([number % 251 + 1]) * size


def opened(files: LogFiles, references: dict[bytes, ValuePlace] | None = None) -> ValueFiles:
    values = ValueFiles(files, file_bytes=FILE_BYTES)
    values.load((references or {}).items(), complete=True)
    return values


def store(values: ValueFiles, *numbers: int) -> None:
    written = values.write([(key(n), value(n)) for n in numbers])
    refer(values, numbers, written)


def refer(values: ValueFiles, numbers: tuple[int, ...], written: WrittenValues) -> None:
    values.changed(zip(map(key, numbers), written.places, strict=True))
    values.settle(written)


def read(values: ValueFiles, number: int) -> bytes:
    place = values.place(key(number))
    assert place is not None
    memory = memoryview(bytearray(place.size))
    try:
        checksum = values.read_into(key(number), place, memory, checksum_from=16)
    except ValueDamaged:
        checksum = None
    found = values.read(key(number), place)
    assert (found, crc32(found[16:])) == (memory, checksum)
    return found


def flush(values: ValueFiles) -> None:
    values.remove(values.doomed())


def test_values_are_read_as_they_were_written_also_from_a_real_directory(tmp_path: Path) -> None:
    values = opened(DiskFiles(tmp_path / "values"))
    store(values, *range(10))
    assert [read(values, n) for n in range(10)] == [value(n) for n in range(10)]
    assert len(list((tmp_path / "values").iterdir())) == 3
    references = values.of_owner(key(0)[:8])
    values.close()
    values = opened(DiskFiles(tmp_path / "values"), references)
    assert [read(values, n) for n in range(10)] == [value(n) for n in range(10)]
    values.close()


def test_what_was_written_survives_a_power_failure_at_any_time() -> None:
    for seed in range(50):
        files = SimLogFiles()
        values = opened(files)
        store(values, 1, 2)
        store(values, 3, 4, 5, 6)
        files.lose_power(Random(seed))
        values = opened(files, values.of_owner(key(0)[:8]))
        assert [read(values, n) for n in range(1, 7)] == [value(n) for n in range(1, 7)]


def test_without_a_sync_a_power_failure_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above finds the bug it is for."""
    monkeypatch.setattr(ValueFiles, "_sync", lambda _self, _growing: None)
    with pytest.raises(ValueDamaged):
        test_what_was_written_survives_a_power_failure_at_any_time()


def test_a_start_removes_what_nothing_refers_to_and_begins_a_new_file() -> None:
    files = SimLogFiles()
    values = opened(files)
    store(values, 1)
    values.write([(key(2), value(2))])  # and the process dies
    values.write([(key(n), value(n)) for n in range(3, 9)])
    files.die()
    values = opened(files, {key(1): values.of_owner(key(0)[:8])[key(1)]})
    assert files.names() == ["0000000001.values"]
    store(values, 9)
    assert read(values, 9) == value(9)
    assert files.names() == ["0000000001.values", "0000000003.values"]


def test_a_start_that_does_not_know_all_references_removes_nothing() -> None:
    files = SimLogFiles()
    values = opened(files)
    store(values, *range(10))
    kept = files.names()
    values.close()
    values = ValueFiles(files, file_bytes=FILE_BYTES)
    values.load([], complete=False)
    assert files.names() == kept
    flush(values)
    assert files.names() == kept
    assert values.wasteful(crowded=True) is None
    assert values.with_garbage() == []


def test_a_file_goes_with_the_flush_that_began_after_its_last_reference() -> None:
    files = SimLogFiles()
    values = opened(files)
    store(values, *range(8))
    doomed = values.doomed()
    values.changed([(key(n), None) for n in range(8)])
    values.remove(doomed)  # that flush may not have seen the deletions
    assert len(files.names()) == 2
    flush(values)
    assert files.names() == []
    assert values.ledger.files == {}


def test_a_file_stays_while_a_reader_may_need_it_and_while_values_wait() -> None:
    files = SimLogFiles()
    values = opened(files)
    store(values, *range(8))
    before = values.pin()
    values.changed([(key(n), None) for n in range(8)])
    flush(values)
    later = values.pin()
    flush(values)
    assert len(files.names()) == 2
    del before
    gc.collect()
    flush(values)
    assert files.names() == [], "the later reader does not know these files"
    del later
    waiting = values.write([(key(n), value(n)) for n in range(8)])
    flush(values)
    assert len(files.names()) == 2
    values.settle(waiting)
    flush(values)
    assert files.names() == []


def test_little_that_is_left_is_moved() -> None:
    files = SimLogFiles()
    values = opened(files)
    store(values, *range(20))
    values.changed([(key(n), None) for n in range(20) if n % 4])
    emptied = 0
    while (file := values.wasteful(crowded=False)) is not None:
        copied, written = values.copy(values.living_in(file))
        values.changed([(k, p) for (k, _), p in zip(copied, written.places, strict=True)])
        values.settle(written)
        emptied += 1
    flush(values)
    assert emptied >= 3
    assert [read(values, n) for n in range(0, 20, 4)] == [value(n) for n in range(0, 20, 4)]
    assert values.ledger.size <= 1.2 * values.ledger.alive + FILE_BYTES


def test_a_damaged_value_stays_where_it_is_and_others_move() -> None:
    files = SimLogFiles()
    values = opened(files)
    store(values, 1, 2, 3, 4)
    values.changed([(key(4), None)])
    values.close()
    place = values.place(key(2))
    assert place is not None
    damaged = files.open(files.names()[0])
    damaged.write([b"?"], place.offset)
    [file] = values.with_garbage()
    copied, written = values.copy(values.living_in(file))
    assert [k for k, _ in copied] == [key(1), key(3)]
    values.changed([(k, p) for (k, _), p in zip(copied, written.places, strict=True)])
    values.settle(written)
    flush(values)
    assert len(files.names()) == 2
    assert values.wasteful(crowded=True) is None


@pytest.mark.parametrize("kind", ["zeros", "cut", "remove", "lost", "misdirected", "bit"])
def test_damage_is_found_or_leaves_the_head_alone(kind: str) -> None:
    """What is in a value has a checksum of its own."""
    for seed in range(30):
        files = SimLogFiles()
        values = opened(files)
        store(values, *range(4))
        values.close()
        files.damage(Random(seed), kind)
        for number in range(4):
            try:
                found = read(values, number)
            except ValueDamaged:
                continue
            assert len(found) == len(value(number))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failure_at_any_call_leaves_nothing_half(number: int) -> None:
    for failing in range(40):
        files = SimLogFiles()
        values = opened(files)
        store(values, 1, 2)
        first = files.calls

        def fault(
            _operation: str, _name: str, files: SimLogFiles = files, at: int = first + failing + 1
        ) -> OSError | None:
            return OSError(number, "injected") if files.calls == at else None

        files.fault = fault
        stored = [1, 2]
        for batch in ((3, 4), (5, 6, 7, 8), (9,)):
            try:
                store(values, *batch)
                stored += batch
            except OSError:
                continue
        values.changed([(key(n), None) for n in (1, 3, 5)])
        flush(values)
        files.fault = lambda _operation, _name: None
        alive = [n for n in stored if n not in (1, 3, 5)]
        assert [read(values, n) for n in alive] == [value(n) for n in alive]
        files.lose_power(Random(failing))
        values = opened(files, values.of_owner(key(0)[:8]))
        assert [read(values, n) for n in alive] == [value(n) for n in alive]
        values.changed([(key(n), None) for n in alive])
        values.close()
        flush(values)
        assert files.names() == []
