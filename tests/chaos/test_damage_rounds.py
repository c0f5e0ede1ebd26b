"""Damage that nobody has met yet: the next round must not hit another node."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from chaos.damage_rounds import HiddenDamage, _digest


def test_damage_is_left_until_its_file_is_rewritten_or_gone(tmp_path: Path) -> None:
    path = tmp_path / "1.sst"
    path.write_bytes(b"damaged")
    damage = HiddenDamage(cast(Any, None), path, _digest(b"damaged"))
    assert damage.is_left
    path.write_bytes(b"another")
    assert not damage.is_left
    path.unlink()
    assert not damage.is_left
