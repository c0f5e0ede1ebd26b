"""num_pending: how many messages a consumer still has to deliver for the first time.

Owns: that count, kept up to date without a recount for every message.
May not touch: positions; they are arguments.
Spec: JetStream consumer info, num_pending."""

from __future__ import annotations

from dataclasses import dataclass

from broker.jetstream.consumer.stream_protocol import MessageSource
from broker.subjects import Steps

RECOUNT_INTERVAL_NS = 100_000_000
STEPS_PER_CALL = 4  # of a count that reads blocks: a millisecond or two


@dataclass(slots=True)
class _Recount:
    """A full count in progress."""

    steps: Steps[int]
    to: int  # the last sequence that it covers
    delivered: int = 0  # messages delivered since it began
    removed: bool = False  # whether messages were removed since it began


class NumPending:
    """Counted once, then maintained: new messages add to it, deliveries subtract from it.

    A removal among the counted messages makes the number uncertain until the next recount.
    Deliveries trigger a recount at most ten times a second, consumer info always does. A stream
    without deleted messages and filters is never counted: its number follows from the sequences.
    A count may visit every subject of the stream. Callers that must not block call `counted` until
    it returns True; `count` then does little.
    """

    __slots__ = (
        "_count",
        "_counted_to",
        "_filters",
        "_recount",
        "_recounted_at",
        "_store",
        "_uncertain",
    )

    def __init__(self, store: MessageSource, filters: tuple[bytes, ...]) -> None:
        self._store = store
        self._filters = filters
        self._count = 0
        self._counted_to = -1  # highest stream sequence that is in the count; -1: nothing counted
        self._uncertain = True
        self._recounted_at = 0
        self._recount: _Recount | None = None

    def count(self, next_seq: int, *, now: int, exact: bool = False) -> int:
        """Stored matching messages at or above next_seq."""
        while not self.counted(next_seq, now=now, exact=exact):
            pass
        return self._count

    def counted(self, next_seq: int, *, now: int, exact: bool = False) -> bool:
        """Continue counting, for some steps. Returns whether the number is known; without `exact`,
        an uncertain one is enough."""
        store = self._store
        last_seq = store.last_seq
        if next_seq > last_seq:
            self._set(0, last_seq)
        elif not self._filters and not store.num_deleted:
            first_seq = store.first_seq
            self._count = last_seq + 1 - (next_seq if next_seq > first_seq else first_seq)
            self._counted_to, self._uncertain, self._recount = last_seq, False, None
        elif self._must_recount(now, exact=exact):
            if self._recount is None:
                steps = store.count_matching_steps(self._filters, next_seq, last_seq)
                self._recount = _Recount(steps, last_seq)
            if not self._go_on(self._recount, now) and (exact or self._counted_to < 0):
                return False
        if last_seq > self._counted_to:
            start = max(self._counted_to + 1, next_seq)
            self._count += store.count_matching(self._filters, start)
            self._counted_to = last_seq
        return True

    def _must_recount(self, now: int, *, exact: bool) -> bool:
        if self._recount is not None or self._counted_to < 0:
            return True
        return self._uncertain and (exact or now - self._recounted_at >= RECOUNT_INTERVAL_NS)

    def _go_on(self, recount: _Recount, now: int) -> bool:
        for _ in range(STEPS_PER_CALL):
            try:
                next(recount.steps)
            except StopIteration as end:
                self._set(max(end.value - recount.delivered, 0), recount.to)
                self._uncertain = recount.removed
                self._recounted_at = now
                return True
        return False

    def delivered(self, count: int) -> None:
        self._count = max(self._count - count, 0)
        if self._recount is not None:
            self._recount.delivered += count

    def removed(self, highest: int, next_seq: int) -> None:
        """Messages up to `highest` were removed from the stream."""
        if highest >= next_seq:
            self._uncertain = True
            if self._recount is not None:
                self._recount.removed = True

    def recount(self) -> None:
        """The position jumped: count again at the next call."""
        self._counted_to = -1
        self._recount = None

    def _set(self, count: int, counted_to: int) -> None:
        self._count = count
        self._counted_to = counted_to
        self._uncertain = False
        self._recount = None
