"""Gaps between stored sequences can be too wide to list every missing sequence."""

from __future__ import annotations

from broker.store.block.codec import Block, BlockBuilder
from broker.store.messages import MessageStore

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
    assert store.deleted_sequences(3) == (2, 3, 4)
