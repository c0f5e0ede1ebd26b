"""The leader shows how far streaming readers are behind, as long as they ask."""

from __future__ import annotations

import pytest

from broker.scan import readers
from broker.scan.readers import IDLE_S, ScanReaders, StreamingReader


def reader(name: str, next_seq: int, at: float) -> StreamingReader:
    return StreamingReader("A", "S", name, next_seq, last_seq=100, seen_s=at)


def test_a_reader_has_the_lag_of_its_last_question_until_it_is_silent() -> None:
    known = ScanReaders()
    known.seen(reader("one", 1, 0.0))
    known.seen(reader("two", 101, 1.0))
    known.seen(reader("one", 91, 2.0))
    assert {one.name: one.lag for one in known.present(3.0)} == {"one": 10, "two": 0}
    assert [one.name for one in known.present(1.5 + IDLE_S)] == ["one"]
    assert list(known.present(3.0 + IDLE_S)) == []


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "READERS_MAX", 2)
    known = ScanReaders()
    for name in ("one", "two", "three", "x" * 1000):
        known.seen(reader(name, 1, 0.0))
    known.seen(reader("one", 50, 1.0))
    assert {one.name: one.lag for one in known.present(1.0)} == {"one": 51, "two": 100}
