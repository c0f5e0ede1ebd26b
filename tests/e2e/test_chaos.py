"""Short chaos runs: real kills under load, judged by the checker."""

from __future__ import annotations

import asyncio

import pytest

from chaos.scenarios import Settings, run_scenario


@pytest.mark.parametrize(
    ("scenario", "storage", "rounds"),
    [("follower-kill", "file", 1), ("all-kill", "file", 1), ("leader-kill", "memory", 3)],
)
def test_promises_hold_under(scenario: str, storage: str, rounds: int) -> None:
    settings = Settings(
        scenario, rate=200, rounds=rounds, fault_seconds=1.0, between_seconds=1.0, storage=storage
    )
    said: list[str] = []
    verdict = asyncio.run(run_scenario(settings, said.append))
    report = "\n".join([*said, *verdict.lines()])
    assert verdict.ok, report
    assert verdict.failed == 0, report
    assert verdict.acked > 100, report
