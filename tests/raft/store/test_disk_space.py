"""The reserve of a disk: the same share of every disk, in levels."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from raft.store.database import StoreTuning
from raft.store.disk_space import DiskFacts, DiskSpace, Space

MB, GB = 1 << 20, 1 << 30


@pytest.mark.parametrize("total", [400 * MB, 4 * GB, 400 * GB])
def test_a_disk_is_full_at_the_same_share_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int
) -> None:
    facts = SimpleNamespace(f_bavail=0, f_blocks=total, f_frsize=1)
    monkeypatch.setattr("raft.store.disk_space.os.statvfs", lambda _path: facts)
    disk = DiskSpace(tmp_path, StoreTuning().reserve_percent)
    levels = {}
    for used in (94, 96, 98, 100):
        facts.f_bavail = total * (100 - used) // 100
        levels[used] = disk.level(0)
    assert levels == {94: Space.AMPLE, 96: Space.SHORT, 98: Space.SCARCE, 100: Space.NONE}
    facts.f_bavail = total * 6 // 100
    assert disk.level(total * 2 // 100) is Space.SHORT, "what is still in memory counts"


def test_a_tiny_disk_has_a_reserve_for_what_is_under_way(tmp_path: Path) -> None:
    facts = SimpleNamespace(f_bavail=13 * MB, f_blocks=48 * MB, f_frsize=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raft.store.disk_space.os.statvfs", lambda _path: facts)
        assert DiskSpace(tmp_path, 5).facts() == DiskFacts(48 * MB, 13 * MB, 12 * MB)


def test_a_store_without_a_reserve_never_refuses() -> None:
    assert DiskFacts(100, 0, 0).level(50) is Space.AMPLE


@pytest.mark.parametrize(("total", "prepared"), [(48 * MB, 6 * MB), (400 * MB, 50 * MB)])
def test_little_of_a_small_disk_is_prepared_kept_or_buffered(total: int, prepared: int) -> None:
    tuning = StoreTuning().for_disk(total)
    log = tuning.log_bytes_goal + tuning.segment_bytes_max + tuning.spare_bytes_max
    assert log + tuning.state_buffer_bytes <= prepared
    assert StoreTuning().for_disk(400 * GB) == StoreTuning()
