"""A database that cannot be opened: which errors mean damage, and which mean something else."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

import pytest

from raft.store import log_store
from raft.store.log_store import LogStore, StoreError, StoreFailed
from raft.store.records import DamagedDatabase, StoreHeld
from tests.raft.store.test_log_store import G, append, entries, open_store


def store_with_entries(path: Path) -> None:
    store = open_store(path)
    append(store, G, entries(1, 3))
    store.flush()
    store.close()


def damage(path: Path, pattern: str, way: str) -> None:
    file = sorted(path.glob(pattern))[-1]
    content = file.read_bytes()
    if way == "remove":
        file.unlink()
    elif way == "cut":
        file.write_bytes(content[: len(content) // 2])
    else:
        file.write_bytes(content[:8] + bytes(b ^ 0xFF for b in content[8:]))


@pytest.mark.parametrize(
    ("pattern", "way"),
    [("CURRENT", "remove"), ("CURRENT", "cut"), ("MANIFEST-*", "remove"), ("MANIFEST-*", "turn"),
     ("*.sst", "remove"), ("*.sst", "cut"), ("*.sst", "turn")],
)  # fmt: skip
def test_damage_is_called_damage(tmp_path: Path, pattern: str, way: str) -> None:
    store_with_entries(tmp_path)
    damage(tmp_path, pattern, way)
    with pytest.raises(DamagedDatabase):
        open_store(tmp_path)


def test_a_damaged_block_of_any_table_is_damage(tmp_path: Path) -> None:
    """A block is checked when it is read: that of the identity is in one of these tables, the note
    that a log was begun in another."""
    store_with_entries(tmp_path)
    tables = sorted(tmp_path.glob("*.sst"))
    assert len(tables) > 1
    for table in tables:
        sound = table.read_bytes()
        table.write_bytes(bytes((sound[0] ^ 1,)) + sound[1:])
        with pytest.raises(DamagedDatabase):
            open_store(tmp_path)
        table.write_bytes(sound)
    open_store(tmp_path).close()


def test_a_lost_write_ahead_log_loses_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    identity = store.identity
    append(store, G, entries(1, 3))
    store.close()
    for file in tmp_path.glob("*.log"):
        file.write_bytes(b"")
    store = open_store(tmp_path)
    assert store.identity == identity
    store.close()


@pytest.mark.parametrize("way", ["contents", "directories"])
def test_a_log_and_promises_that_are_gone_are_damage(tmp_path: Path, way: str) -> None:
    """The database alone does not remember what this node has voted for."""
    store_with_entries(tmp_path)
    for name in ("segments", "promises"):
        shutil.rmtree(tmp_path / name)
        if way == "contents":
            (tmp_path / name).mkdir()
    for _ in range(2):  # the refusal has changed nothing
        with pytest.raises(DamagedDatabase, match="the log and the promises are missing"):
            open_store(tmp_path)


def test_a_directory_of_an_earlier_version_is_marked_when_it_is_opened(tmp_path: Path) -> None:
    store_with_entries(tmp_path)
    store = open_store(tmp_path)
    store.db.delete(b"log")  # which earlier versions did not write
    store.close()
    open_store(tmp_path).close()
    for name in ("segments", "promises"):
        shutil.rmtree(tmp_path / name)
    with pytest.raises(DamagedDatabase):
        open_store(tmp_path)


def test_a_crash_before_the_log_was_begun_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise OSError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(log_store, "remove_unfinished", crash)
        with pytest.raises(StoreError):
            open_store(tmp_path)
    open_store(tmp_path).close()


def test_damage_that_a_compaction_meets_condemns_the_database(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for _ in range(2):
        for key in range(400):
            store.state_column()[b"%d" % key] = secrets.token_bytes(200)
        store.flush_state()
    store.close()
    table = max(tmp_path.glob("*.sst"), key=lambda file: file.stat().st_size)
    content = table.read_bytes()
    table.write_bytes(
        content[:20_000] + bytes(b ^ 255 for b in content[20_000:20_010]) + content[20_010:]
    )
    store = open_store(tmp_path)
    assert store.damage is None
    store.state_column().compact_range(None, None)
    with pytest.raises(StoreFailed):
        store.flush_state()
    assert store.damage is not None
    assert "checksum mismatch" in store.damage
    store.condemn()
    store.close()
    with pytest.raises(DamagedDatabase, match="checksum mismatch"):
        open_store(tmp_path)


def test_a_store_in_use_is_not_damaged(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StoreHeld, match="still open in this process") as refused:
        LogStore.open(tmp_path, node_name="n1", cluster_name="c")
    assert not isinstance(refused.value, DamagedDatabase)
    store.close()
