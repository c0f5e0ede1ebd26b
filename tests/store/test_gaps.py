"""Gaps between stored sequences can be too wide to list every missing sequence."""

from __future__ import annotations

from collections.abc import Iterator

from broker.store.block.codec import Block, BlockBuilder
from broker.store.messages import MessageStore
from broker.store.search import MISSING_PER_STEP
from broker.subjects import Steps, finish

FAR = 1 << 60


def with_a_gap() -> MessageStore:
    """As in a mirror whose origin was purged up to a much higher sequence."""
    store = MessageStore()
    store.append(b"a", b"", b"x", time_ns=1)
    builder = BlockBuilder(FAR)
    builder.append(b"a", b"", b"y", time_ns=2, seq=FAR)
    store.append_sequenced(Block(builder.build(seal=False), verify=False))
    return store


def test_deleted_sequences_are_listed_up_to_a_limit() -> None:
    store = with_a_gap()
    assert store.num_deleted == FAR - 2
    assert finish(store.deleted_sequences(3)) == (2, 3, 4)


def stepped(steps: Steps[tuple[int, ...]]) -> tuple[int, tuple[int, ...]]:
    """How many steps there are, and what they return."""
    returned: list[tuple[int, ...]] = []

    def run() -> Iterator[None]:
        returned.append((yield from steps))

    return sum(1 for _ in run()), returned[0]


def test_deleted_sequences_are_listed_in_steps() -> None:
    """One step for all of them took 0.1 s for 100,000; and sixteen requests came at a time."""
    store = MessageStore()
    for _ in range(30_000):
        store.append(b"a", b"", b"x", time_ns=1)
    gone = [*range(2, 20_000, 2), *range(21_000, 29_000)]
    for seq in gone:
        store.remove(seq)
    for limit in (1, 5000, 9_999, 100_000):
        count, listed = stepped(store.deleted_sequences(limit))
        assert listed == tuple(gone[:limit])
        assert count >= min(limit, len(gone)) // (2 * MISSING_PER_STEP)
    everything = [seq for a, b in store.deleted_ranges() for seq in range(a, b + 1)]
    assert everything == gone


def test_a_listing_goes_on_after_messages_were_removed_and_added() -> None:
    store = MessageStore()
    for _ in range(20_000):
        store.append(b"a", b"", b"x", time_ns=1)
    for seq in range(2, 20_000, 2):
        store.remove(seq)
    steps = store.deleted_sequences(100_000)
    next(steps)
    store.drop_oldest(9000)
    store.append(b"a", b"", b"x", time_ns=1)
    listed = finish(steps)
    assert listed[0] == 2
    assert set(range(18_002, 20_000, 2)) <= set(listed)
