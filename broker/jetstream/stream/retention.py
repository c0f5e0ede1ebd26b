"""Which messages may leave a stream: limits and the interest of consumers.

Owns: the rules; the store does the removing.
May not touch: publish checks, delivery, what time does (expiry.py).
Spec: JetStream sheet 4.1 (limits), 4.2 (retention), 2.2 (a lowered limit trims at once)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from broker.jetstream.config import Discard, Retention

if TYPE_CHECKING:
    from broker.jetstream.consumer.stream_protocol import AckingConsumer
    from broker.jetstream.stream.stream import Stream


def enforce_limits(stream: Stream, subjects: Iterable[bytes]) -> None:
    """After messages came: the oldest of these subjects, then of all, make room for them."""
    config, store = stream.config, stream.store
    if config.max_msgs_per_subject > 0:
        for subject in subjects:
            store.drop_oldest_of(subject, config.max_msgs_per_subject)
    if config.discard is Discard.OLD:
        if 0 < config.max_msgs < store.messages:
            store.drop_oldest(store.messages - config.max_msgs)
        if 0 < config.max_bytes < store.bytes:
            store.drop_to_size(config.max_bytes)


def enforce_all_limits(stream: Stream) -> None:
    """After the configuration changed."""
    limit = stream.config.max_msgs_per_subject
    over = [name for name, count in stream.store.index.counts() if count > limit > 0]
    enforce_limits(stream, sorted(over))


def settle(stream: Stream, consumer: AckingConsumer, seqs: Sequence[int]) -> None:
    """A consumer needs these no more: what nobody needs any longer goes."""
    store = stream.store
    if stream.config.retention is Retention.LIMITS:
        return
    if isinstance(seqs, range):  # all it has passed: may reach far below what is stored
        seqs = range(max(seqs.start, store.first_seq), min(seqs.stop, store.last_seq + 1))
    ordered = seqs if isinstance(seqs, range) else sorted(set(seqs))
    alone = stream.config.retention is Retention.WORKQUEUE or len(stream.consumers) == 1
    if alone and not consumer.filters:
        store.remove_many(ordered)
        return
    done = []
    for seq in ordered:
        found = store.rows(seq)
        if found is not None:
            subject = found[0].subject(found[1])
            if consumer.wants(subject) if alone else _nobody_needs(stream, subject, seq):
                done.append(seq)
    store.remove_many(done)


def drop_without_interest(stream: Stream) -> None:
    """A consumer left or looks elsewhere, or interest has become the rule: look at everything."""
    if stream.config.retention is not Retention.INTEREST:
        return
    store = stream.store
    if not stream.consumers:
        store.purge()
        return
    for subject in sorted(name for name, _ in store.index.counts() if not stream.wants(name)):
        store.purge(subject)
    seq = store.next_matching((), store.first_seq)
    while seq:
        found = store.rows(seq)
        if found is not None and _nobody_needs(stream, found[0].subject(found[1]), seq):
            store.remove(seq)
        seq = store.next_matching((), seq + 1)


def _nobody_needs(stream: Stream, subject: bytes, seq: int) -> bool:
    consumers = stream.consumers.values()
    return all(consumer.settled(seq) or not consumer.wants(subject) for consumer in consumers)
