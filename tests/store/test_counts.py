"""Messages of many subjects are counted by the index, without a look at the blocks."""

from __future__ import annotations

import pytest

from broker.store import search
from broker.store.messages import MessageStore
from broker.subjects import finish


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ((b"a.1", b"a.2"), 20),
        ((b"a.1", b"a.2", b"missing"), 20),
        ((b"a.*", b"b.1"), 60),
        ((b"a.1", b"*.1"), 20),  # overlapping: each message once
        ((b"missing", b"none"), 0),
    ],
)
def test_a_new_consumer_counts_by_the_index(
    monkeypatch: pytest.MonkeyPatch, filters: tuple[bytes, ...], count: int
) -> None:
    def blocks_read(*_: object, **__: object) -> int:
        raise AssertionError("read the blocks")

    store = MessageStore()
    for _ in range(10):
        for subject in (*(b"a.%d" % at for at in range(5)), b"b.1", b"c"):
            store.append(subject, b"", b"x", time_ns=1)
    start, last = store.first_seq, store.last_seq
    wanted = store._filter(filters)
    by_blocks = search.count_matching_steps(store.segments, wanted, start=start, last=last)
    assert finish(by_blocks) == count
    monkeypatch.setattr(search, "count_matching_steps", blocks_read)
    assert store.count_matching(filters, start) == count
