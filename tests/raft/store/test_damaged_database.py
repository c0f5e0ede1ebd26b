"""A database that cannot be opened: which errors mean damage, and which mean something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from raft.store.log_store import LogStore, StoreError
from raft.store.records import DamagedDatabase
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


def test_a_store_in_use_is_not_damaged(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StoreError, match="in use by another process") as refused:
        LogStore.open(tmp_path, node_name="n1", cluster_name="c")
    assert not isinstance(refused.value, DamagedDatabase)
    store.close()
