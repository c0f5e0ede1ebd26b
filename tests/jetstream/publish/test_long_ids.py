"""Message ids may be as long as headers. What a stream remembers of them is bounded."""

from __future__ import annotations

import pytest

from broker.jetstream.commands.publish_entry import NO_SPACE
from broker.jetstream.publish import dedup_window
from broker.jetstream.publish.dedup_window import DedupWindow
from broker.store.memory_db import MemoryDb
from tests.support.stream_rig import SECOND, Driver

LONG = 50_000


def remembered(count: int, size: int = LONG) -> DedupWindow:
    window = DedupWindow()
    for at in range(count):
        window.add(b"%0*d" % (size, at), seq=at + 1, time_ns=at + 1)
    return window


def test_a_stream_remembers_so_many_bytes_of_long_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup_window, "LONG_BYTES_MAX", 10 * LONG)
    window = remembered(10)
    assert not window.overfull
    window.add(b"x" * LONG, seq=11, time_ns=11)
    assert window.overfull
    window.expire(now_ns=103, window_ns=100)
    assert not window.overfull
    window.expire(now_ns=1000, window_ns=100)
    assert not window._long_bytes


def test_ids_of_ordinary_length_are_not_counted() -> None:
    assert not remembered(100, size=256)._long_bytes


def test_a_checkpoint_has_a_bounded_part_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The growing chunk is in every checkpoint: 4,096 ids of 50 KB were 200 MB each time."""
    monkeypatch.setattr(dedup_window, "LONG_BYTES_MAX", 10 * LONG)
    driver = Driver(duplicate_window=100 * SECOND)
    for at in range(20):
        driver.publish("s.a", Nats_Msg_Id=f"{at:0{LONG}d}")
    db = MemoryDb()
    batch = db.begin()
    image = driver.stream.dedup.checkpoint(batch, 7)
    assert sum(len(one) for chunk in image.chunks for one in chunk.ids) < 400_000
    db.write(batch)
    loaded = DedupWindow.load(image, db.files(7), last_id=b"")
    assert loaded.entries() == driver.stream.dedup.entries()
    assert loaded.overfull


def test_an_entry_without_space_is_refused_by_every_replica() -> None:
    driver = Driver()
    rows: list[tuple[bytes, dict[str, str], bytes]] = [(b"s.a", {"Nats-Msg-Id": "1"}, b"x")]
    assert driver.noted(rows, bounds=NO_SPACE) == [(0, (10023, "insufficient resources"))]
