"""Expiry of messages: max_age, per-message TTL, and the delete markers they leave.

Owns: which messages an Expire command removes, the markers, and when the next Expire is needed.
May not touch: clocks; the time is the command's. Idle batches and expired message ids are dropped
by broker/jetstream/publish/apply_publish.py.
Spec: NATS ADR-43 (per-message TTL, subject delete markers); max_age of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.jetstream.incoming_message import IncomingMessage
from broker.jetstream.publish.message_writer import MessageWriter
from broker.jetstream.times import go_duration
from broker.store.messages import MessageStore
from broker.wire import headers as wire_headers

_MARKER: Final = b"Nats-Marker-Reason"


def expire_messages(writer: MessageWriter, now_ns: int) -> int:
    """Remove messages whose TTL has ended or whose age is at least max_age; returns how many."""
    config, store = writer.config, writer.store
    due = store.deadlines.take_due(now_ns) if store.deadlines else []
    age = config.max_age
    bound = store.expired_before(now_ns - age) if age > 0 else store.first_seq
    if config.subject_delete_marker_ttl > 0 and config.mirror is None:
        return _expire_with_markers(writer, sorted({*due, *_aged(store, bound)}), now_ns)
    removed = store.remove_many(due)
    if _protected(store, bound):
        return removed + store.remove_many(_aged(store, bound))
    return removed + store.drop_before(bound)


def next_message_expiry(writer: MessageWriter) -> int | None:
    """When the next message expires or the next schedule is due, None if neither will happen."""
    store, max_age = writer.store, writer.config.max_age
    if not store.messages:
        return None
    times: list[int | None] = []
    if store.deadlines:
        times.append(store.deadlines.next_due(store.has))
    if writer.schedules:
        times.append(writer.schedules.next_due(store.has))
    first = _first_aging(store) if max_age > 0 else 0
    found = store.rows(first) if first else None
    if found is not None:
        times.append(found[0].time(found[1]) + max_age)
    return min((at for at in times if at is not None), default=None)


def _expire_with_markers(writer: MessageWriter, expired: list[int], now_ns: int) -> int:
    """Remove the messages; a subject that loses its last message gets a delete marker."""
    store = writer.store
    left: dict[bytes, int] = {}
    emptied: list[bytes] = []
    for seq in expired:
        found = store.rows(seq)
        if found is None:
            continue
        subject = found[0].subject(found[1])
        entry = store.index.get(subject)
        assert entry is not None
        left[subject] = left.get(subject, entry.count) - 1
        if not left[subject] and not _is_marker(found[0].headers(found[1])):
            emptied.append(subject)
    removed = store.remove_many(expired)
    ttl = go_duration(writer.config.subject_delete_marker_ttl).encode()
    for subject in emptied:
        writer.store_message(_marker(subject, ttl, max(now_ns, store.last_time)))
    return removed


def _marker(subject: bytes, ttl: bytes, time_ns: int) -> IncomingMessage:
    lines = [(_MARKER, b"MaxAge"), (b"Nats-TTL", ttl), (b"Nats-Rollup", b"sub")]
    return IncomingMessage.of(subject, wire_headers.build(b"", lines), b"", time_ns)


def _is_marker(raw: bytes) -> bool:
    if not raw:
        return False
    return (
        bool(wire_headers.get(raw, _MARKER)) or wire_headers.get(raw, b"KV-Operation") == b"PURGE"
    )


def _aged(store: MessageStore, bound: int) -> Iterable[int]:
    """Sequences below `bound` that max_age removes."""
    protected = _protected(store, bound)
    return (seq for seq in range(_first_aging(store) or bound, bound) if seq not in protected)


def _first_aging(store: MessageStore) -> int:
    """The first sequence that max_age may remove; 0 if there is none."""
    return store.deadlines.first_aging(store.first_seq, lambda seq: store.next_matching((), seq))


def _protected(store: MessageStore, bound: int) -> set[int]:
    """Stored messages below `bound` with TTL "never". Only stored ones, because entries of removed
    messages may differ between replicas."""
    return {seq for seq in store.deadlines.protected() if seq < bound and store.has(seq)}
