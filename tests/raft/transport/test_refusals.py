"""Refusals in the log: each reason once, bounded, and not silenced forever."""

from __future__ import annotations

import logging

import pytest

from raft.transport import refusals
from raft.transport.refusals import Refusals


def test_ever_new_reasons_neither_flood_the_log_nor_silence_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr("raft.transport.refusals.time.monotonic", lambda: now)
    log_once = Refusals("a").log_once
    with caplog.at_level(logging.WARNING):
        for number in range(10 * refusals._REASONS_MAX):
            log_once(f"reason {number % 2000}")
        assert len(caplog.records) == refusals._REASONS_MAX + 1
        assert "not logged for now" in caplog.records[-1].message
        now += refusals._REASONS_SECONDS
        log_once("a new reason")
        assert caplog.records[-1].message == "a: a new reason"
