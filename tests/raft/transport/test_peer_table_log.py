"""Refusals in the log: each once, bounded, and not silent for ever."""

from __future__ import annotations

import logging

import pytest

from raft.transport import peer_table as mesh
from raft.transport.transport import Transport
from raft.types import node_id


def test_ever_new_reasons_fill_neither_the_log_nor_silence_it_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr("raft.transport.peer_table.time.monotonic", lambda: now)
    transport = Transport(
        node=node_id("a"), name="a", cluster="c", listen_host="127.0.0.1", listen_port=0, routes=[]
    )
    log_once = transport._mesh.log_once
    with caplog.at_level(logging.WARNING):
        for number in range(10 * mesh._REASONS_MAX):
            log_once(f"reason {number % 2000}")
        assert len(caplog.records) == mesh._REASONS_MAX + 1
        assert "not logged for now" in caplog.records[-1].message
        now += mesh._REASONS_SECONDS
        log_once("a real one")
        assert caplog.records[-1].message == "a: a real one"
