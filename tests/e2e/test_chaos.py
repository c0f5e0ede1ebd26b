"""Short chaos runs: real kills under load, judged by the checker."""

from __future__ import annotations

import asyncio

import pytest

from chaos.scenarios import Settings, run_scenario


@pytest.mark.parametrize("scenario", ["follower-kill", "all-kill"])
def test_promises_hold_under(scenario: str) -> None:
    settings = Settings(scenario, rate=200, fault_seconds=1.0, between_seconds=1.0)
    said: list[str] = []
    verdict = asyncio.run(run_scenario(settings, said.append))
    report = "\n".join([*said, *verdict.lines()])
    assert verdict.ok, report
    assert verdict.failed == 0, report
    assert verdict.acked > 100, report
