"""A small version of tests/benchmarks/copy_chaos.py: copies are exact after kills and cuts."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.benchmarks.copy_chaos import run


def test_copies_are_exact_after_kills_and_cuts(tmp_path: Path) -> None:
    found = asyncio.run(run(tmp_path, count=20_000, rounds=2))
    assert found.digests[0] == found.digests[1], "the mirror"
    assert found.bodies[0] == found.bodies[1], "the sourced stream"
    assert found.stored >= found.acked >= 20_000
