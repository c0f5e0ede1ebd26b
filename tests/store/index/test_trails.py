"""The trail of a subject is either complete and correct, or absent."""

from __future__ import annotations

from broker.store.block.codec import Block, BlockBuilder
from broker.store.messages import MessageStore


def three_without_the_second() -> MessageStore:
    store = MessageStore()
    store.remember_trails(3)
    for size in (10, 20, 30):
        store.append(b"a", b"", b"x" * size, time_ns=size)
    store.remove(2)
    return store


def mirrored(store: MessageStore, seq: int) -> None:
    builder = BlockBuilder(seq)
    builder.append(b"a", b"", b"y" * 5, time_ns=99, seq=seq)
    store.append_sequenced(Block(builder.build(seal=False), verify=False))


def test_a_mirrored_message_after_a_delete_in_the_middle_of_a_trail() -> None:
    store = three_without_the_second()
    mirrored(store, 4)
    store.drop_oldest_of(b"a", 1)
    assert [seq for seq in range(1, 5) if store.has(seq)] == [4]
    assert (store.messages, store.num_subjects) == (1, 1)


def test_messages_that_were_added_without_trails() -> None:
    store = three_without_the_second()
    store.remember_trails(0)
    store.append(b"a", b"", b"z", time_ns=100)
    store.remember_trails(3)
    store.drop_oldest_of(b"a", 1)
    assert [seq for seq in range(1, 5) if store.has(seq)] == [4]
