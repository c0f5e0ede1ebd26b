"""Short chaos runs: real kills under load, judged by the checker.

Longer ones are commands: `jetraft chaos run`."""

from __future__ import annotations

import asyncio

import pytest

from chaos.scenarios import Settings, run_scenario


@pytest.mark.parametrize(
    ("scenario", "storage", "rounds"),
    [("follower-kill", "file", 1), ("all-kill", "file", 1), ("leader-kill", "memory", 3)],
)
def test_every_promise_is_kept(scenario: str, storage: str, rounds: int) -> None:
    settings = Settings(
        scenario, rate=200, rounds=rounds, fault_seconds=0.5, between_seconds=0.5, storage=storage,
        answer_within_s=3.0,
    )  # fmt: skip
    said: list[str] = []
    verdict = asyncio.run(run_scenario(settings, said.append))
    report = "\n".join([*said, *verdict.lines()])
    assert verdict.ok, report
    assert verdict.failed == 0, report
    assert verdict.acked > 100, report
