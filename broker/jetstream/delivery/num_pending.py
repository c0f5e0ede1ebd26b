"""num_pending: how many messages a consumer still has to deliver for the first time.

Owns: that count, kept up to date without a recount for every message.
May not touch: positions; they are arguments.
Spec: JetStream consumer info, num_pending."""

from __future__ import annotations

from broker.jetstream.consumer.stream_protocol import MessageSource

RECOUNT_INTERVAL_NS = 100_000_000


class NumPending:
    """Counted once, then maintained: new messages add to it, deliveries subtract from it.

    A removal among the counted messages makes the number uncertain until the next recount.
    Deliveries trigger a recount at most ten times a second, consumer info always does. A stream
    without deleted messages and filters is never counted: its number follows from the sequences.
    """

    __slots__ = ("_count", "_counted_to", "_filters", "_recounted_at", "_store", "_uncertain")

    def __init__(self, store: MessageSource, filters: tuple[bytes, ...]) -> None:
        self._store = store
        self._filters = filters
        self._count = 0
        self._counted_to = -1  # highest stream sequence that is in the count; -1: nothing counted
        self._uncertain = True
        self._recounted_at = 0

    def count(self, next_seq: int, *, now: int, exact: bool = False) -> int:
        """Stored matching messages at or above next_seq."""
        store = self._store
        last_seq = store.last_seq
        if next_seq > last_seq:
            self._set(0, last_seq)
        elif not self._filters and not store.num_deleted:
            self._set(last_seq + 1 - max(next_seq, store.first_seq), last_seq)
        elif self._counted_to < 0 or (self._uncertain and (exact or self._stale(now))):
            self._set(store.count_matching(self._filters, next_seq), last_seq)
            self._recounted_at = now
        elif last_seq > self._counted_to:
            start = max(self._counted_to + 1, next_seq)
            self._count += store.count_matching(self._filters, start)
            self._counted_to = last_seq
        return self._count

    def delivered(self, count: int) -> None:
        self._count = max(self._count - count, 0)

    def removed(self, highest: int, next_seq: int) -> None:
        """Messages up to `highest` were removed from the stream."""
        if highest >= next_seq:
            self._uncertain = True

    def recount(self) -> None:
        """The position jumped: count again at the next call."""
        self._counted_to = -1

    def _stale(self, now: int) -> bool:
        return now - self._recounted_at >= RECOUNT_INTERVAL_NS

    def _set(self, count: int, counted_to: int) -> None:
        self._count = count
        self._counted_to = counted_to
        self._uncertain = False
