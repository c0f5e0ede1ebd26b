"""Blocks that are in memory only are bounded for all streams of a node together."""

from __future__ import annotations

from broker.store import persistence
from broker.store.messages import MessageStore
from broker.store.segments import BlockCache


def test_many_streams_write_earlier_than_one() -> None:
    store = MessageStore()
    cache, segments = store.segments.cache, store.segments
    segments.unwritten_bytes += persistence.CHECKPOINT_BYTES // 2
    assert not persistence.needs_checkpoint(store)
    cache.count_unwritten(77, persistence.UNWRITTEN_BYTES_MAX)
    assert persistence.needs_checkpoint(store)
    segments.unwritten_bytes -= persistence.CHECKPOINT_BYTES // 2
    assert not persistence.needs_checkpoint(store)  # it has nothing to write


def test_a_deleted_stream_counts_no_longer() -> None:
    cache = BlockCache()
    cache.count_unwritten(1, 100)
    cache.count_unwritten(2, 50)
    cache.count_unwritten(1, 70)
    assert cache.unwritten_bytes == 120
    cache.discard_group(1)
    cache.discard_group(1)
    assert cache.unwritten_bytes == 50


def test_a_block_that_is_sealed_early_is_read_and_goes_on() -> None:
    store = MessageStore()
    for at in range(3):
        store.append(b"a", b"", b"x" * 100, time_ns=at + 1)
    assert persistence.growing_bytes(store) > 300
    store.segments.seal()
    assert persistence.growing_bytes(store) == 0
    assert persistence.unwritten_bytes(store) > 300
    store.append(b"a", b"", b"y", time_ns=9)
    assert (store.messages, store.first_seq, store.last_seq) == (4, 1, 4)
    assert store.subject_state(b"a") == (4, 1, 4)
    assert persistence.growing_bytes(store) > 0
