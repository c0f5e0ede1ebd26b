"""The plan of a run follows from its seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.campaign.faults.versions import held_back, readable_by
from chaos.campaign.local_target import LocalSettings, usable
from chaos.campaign.plan import ALL_NODES, KINDS, draw


def test_the_same_seed_gives_the_same_plan() -> None:
    kinds = list(KINDS)
    one = draw(7, nodes=5, kinds=kinds, seconds=300)
    assert one == draw(7, nodes=5, kinds=kinds, seconds=300)
    assert one != draw(8, nodes=5, kinds=kinds, seconds=300)


@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(ALL_NODES)))
def test_faults_hit_a_minority(nodes: int, kind: str) -> None:
    for fault in draw(1, nodes=nodes, kinds=[kind], seconds=200):
        assert 1 <= len(fault.victims) <= (nodes - 1) // 2


def test_a_long_run_has_every_kind() -> None:
    plan = draw(3, nodes=5, kinds=list(KINDS), seconds=3600)
    assert {fault.kind.name for fault in plan} == set(KINDS)


def test_without_root_the_rest_is_tried_and_what_is_not_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    kinds, not_tried = usable(list(KINDS), LocalSettings())
    assert {"kill-leader", "pause", "wipe", "clock-jump"} <= set(kinds)
    assert not {"halves", "power-cut-all", "full-disk"} & set(kinds)
    assert "halves: needs root (network namespaces)" in not_tried
    assert "power-cut-all: needs root to mount loop file systems" in not_tried
    assert "upgrade: needs the version before (--previous)" in not_tried


def test_a_version_that_knows_no_levels_is_not_told_one(tmp_path: Path) -> None:
    config = f"jetstream {{ {held_back(tmp_path)} }}"
    assert "feature_level: 0" in config
    assert readable_by(tmp_path, config) == "jetstream {  }"
    levels = tmp_path / "broker" / "cluster" / "meta"
    levels.mkdir(parents=True)
    (levels / "feature_level.py").write_text("NEWEST_LEVEL: Final = 2\n")
    config = f"jetstream {{ {held_back(tmp_path)} }}"
    assert readable_by(tmp_path, config) == config == "jetstream { feature_level: 2 }"
