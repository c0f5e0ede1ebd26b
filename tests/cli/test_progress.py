"""Progress without a terminal."""

from __future__ import annotations

import pytest

from broker.cli.output import progress


def test_without_a_terminal_a_line_is_told_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("broker.cli.output.progress.time.monotonic", lambda: now[0])
    with progress.progress_told("simulated", 2_000) as tell:
        tell(1)
        assert capsys.readouterr().err == ""
        now[0] += progress.LINE_EVERY_S
        tell(1_200)
        tell(1_201)
        assert capsys.readouterr().err == "simulated 1,200 of 2,000\n"
        now[0] += progress.LINE_EVERY_S
        tell(1_900)
    assert capsys.readouterr().err == "simulated 1,900 of 2,000\n"
