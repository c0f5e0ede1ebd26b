"""The simulated disk of a node: what damage does to files, and what of it a new store keeps."""

from __future__ import annotations

from random import Random

import pytest

from chaos.sim.files import SECTOR, SimLogFiles
from chaos.sim.world.node import NodeDisk


def synced_file(*writes: tuple[int, bytes]) -> SimLogFiles:
    """Each write is followed by a sync."""
    files = SimLogFiles()
    file = files.create("log")
    files.sync_names()
    for offset, content in writes:
        file.write([content], offset)
        file.sync()
    return files


def content(files: SimLogFiles) -> bytes:
    return files.open("log").read(1 << 20, 0)


def test_a_lost_write_leaves_what_was_there_before() -> None:
    for seed in range(20):
        files = synced_file((0, b"aaaa"), (0, b"bb"), (2, b"cc"))
        files.damage(Random(seed), "lost")
        assert content(files) in (b"aacc", b"bbaa", b"\0\0\0\0")
        files.lose_power(Random(seed))
        assert content(files) in (b"aacc", b"bbaa", b"\0\0\0\0"), "it is lost on the disk as well"


def test_a_misdirected_write_is_in_a_sector_of_another_one() -> None:
    sectors = [bytes([number]) * SECTOR for number in range(1, 5)]
    whole = b"".join(sectors)
    changed = 0
    for seed in range(20):
        files = synced_file((0, whole))
        files.damage(Random(seed), "misdirected")
        found = content(files)
        assert len(found) == len(whole)
        differ = [n for n in range(4) if found[n * SECTOR : (n + 1) * SECTOR] != sectors[n]]
        assert len(differ) <= 1
        changed += len(differ)
        for number in differ:
            assert found[number * SECTOR : (number + 1) * SECTOR] in sectors
    assert changed > 5


def test_a_database_that_is_set_aside_takes_the_log_with_it_but_no_small_file() -> None:
    disk = NodeDisk(files={"session": b"7"})
    disk.segments.create("log")
    disk.condemn("Corruption")
    old = disk.database
    disk.set_aside()
    assert disk.files == {"session": b"7"}
    assert disk.database is not old
    assert not disk.database.condemned
    assert disk.segments.names() == []
    disk.database.write_fails = True
    with pytest.raises(OSError, match="simulated write error"):
        disk.segments.create("log")  # on the same disk, with its faults
