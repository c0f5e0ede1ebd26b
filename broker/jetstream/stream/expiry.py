"""What time does to a stream: messages and batches leave, markers come.

Owns: which messages an Expire command takes, the delete markers, and when the next is needed.
May not touch: clocks; the time is the command's.
Spec: JetStream sheet 3.7 (idle batches), 3.9, 3.10 (TTL and markers), 4.1 (max_age)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from broker.jetstream.publish.message import IncomingMessage
from broker.jetstream.publish.store_message import store_message
from broker.jetstream.times import go_duration
from broker.wire import headers as wire_headers

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream

_MARKER: Final = b"Nats-Marker-Reason"


def expire(stream: Stream, now_ns: int) -> int:
    """Messages leave whose own time has come, or whose age is max_age or more. How many."""
    if stream.config.duplicate_window > 0:
        stream.dedup.expire(now_ns=now_ns, window_ns=stream.config.duplicate_window)
    for batch_id in stream.batches.expire(now_ns) if stream.batches else ():
        stream.abandoned(batch_id, "timeout")
    stream.fast_batches.expire(now_ns)
    store, deadlines = stream.store, stream.store.deadlines
    due = deadlines.take_due(now_ns) if deadlines else []
    age = stream.config.max_age
    bound = store.expired_before(now_ns - age) if age > 0 else store.first_seq
    if stream.config.subject_delete_marker_ttl > 0 and stream.config.mirror is None:
        return _expire_with_markers(stream, sorted({*due, *_ageing(stream, bound)}), now_ns)
    gone = store.remove_many(due)
    if _kept_for_ever(stream, bound):
        return gone + store.remove_many(_ageing(stream, bound))
    return gone + store.drop_before(bound)


def next_expiry(stream: Stream) -> int | None:
    """When the leader has to propose something again."""
    store = stream.store
    times: list[int | None] = [stream.batches.next_expiry(), stream.fast_batches.next_expiry()]
    if store.messages:
        if store.deadlines:
            times.append(store.deadlines.next_due(store.has))
        if stream.schedules:
            times.append(stream.schedules.next_due(store.has))
        first = _first_ageing(stream) if stream.config.max_age > 0 else 0
        found = store.rows(first) if first else None
        if found is not None:
            times.append(found[0].time(found[1]) + stream.config.max_age)
    return min((at for at in times if at is not None), default=None)


def _expire_with_markers(stream: Stream, going: list[int], now_ns: int) -> int:
    """As `expire`, but a subject whose last message goes gets a marker in its place."""
    store = stream.store
    left: dict[bytes, int] = {}
    ended: list[bytes] = []
    for seq in going:
        found = store.rows(seq)
        if found is None:
            continue
        subject = found[0].subject(found[1])
        entry = store.index.get(subject)
        assert entry is not None
        left[subject] = left.get(subject, entry.count) - 1
        if not left[subject] and not _is_marker(found[0].headers(found[1])):
            ended.append(subject)
    gone = store.remove_many(going)
    for subject in ended:
        store_message(stream, _marker(stream, subject, max(now_ns, store.last_time)))
    return gone


def _marker(stream: Stream, subject: bytes, time_ns: int) -> IncomingMessage:
    ttl = go_duration(stream.config.subject_delete_marker_ttl).encode()
    lines = [(_MARKER, b"MaxAge"), (b"Nats-TTL", ttl), (b"Nats-Rollup", b"sub")]
    return IncomingMessage.of(subject, wire_headers.build(b"", lines), b"", time_ns)


def _is_marker(raw: bytes) -> bool:
    if not raw:
        return False
    return (
        bool(wire_headers.get(raw, _MARKER)) or wire_headers.get(raw, b"KV-Operation") == b"PURGE"
    )


def _ageing(stream: Stream, bound: int) -> Iterable[int]:
    """Sequences below `bound` that max_age takes."""
    kept = _kept_for_ever(stream, bound)
    return (seq for seq in range(_first_ageing(stream) or bound, bound) if seq not in kept)


def _first_ageing(stream: Stream) -> int:
    """The first sequence that is not kept for ever; 0 when there is none."""
    store = stream.store
    return store.deadlines.first_ageing(store.first_seq, lambda seq: store.next_matching((), seq))


def _kept_for_ever(stream: Stream, bound: int) -> set[int]:
    """Stored messages below `bound` that age does not take. Only stored ones count: which others
    a replica still remembers is its own affair."""
    store, deadlines = stream.store, stream.store.deadlines
    return {seq for seq in deadlines.protected() if seq < bound and store.has(seq)}
