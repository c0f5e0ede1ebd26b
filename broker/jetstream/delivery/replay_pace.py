"""Replay at the original pace.

Owns: when the next message of a replay may go.
May not touch: delivery itself.
Spec: JetStream replay_policy original: gaps over 1 ms are kept, until the last sequence at start
has passed."""

from __future__ import annotations

from typing import Final

from broker.jetstream.config import ReplayPolicy
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.delivery.cursor import Cursor, RowGroups

GAP_MIN_NS: Final = 1_000_000


class Replay:
    """For the instant policy it hands the rows through."""

    def __init__(self, consumer: Consumer) -> None:
        original = consumer.config.replay_policy is ReplayPolicy.ORIGINAL
        self._until = consumer.stream.store.last_seq if original else 0
        self._sent_at = 0
        self._message_time = 0
        self.ready_at = 0  # when the next message may go, 0 if now

    def take(self, cursor: Cursor, limit_rows: int, limit_bytes: int, now: int) -> RowGroups:
        """The next rows to deliver. Those of a replay come one by one, when their time is."""
        self.ready_at = 0
        if cursor.next_seq > self._until:
            return cursor.take(limit_rows=limit_rows, limit_bytes=limit_bytes)
        groups = cursor.take(limit_rows=1, limit_bytes=limit_bytes)
        if not groups:
            return groups
        rows, indices = groups[0]
        time_ns = rows.time(indices[0])
        gap = time_ns - self._message_time
        if self._sent_at and gap > GAP_MIN_NS and now < self._sent_at + gap:
            self.ready_at = self._sent_at + gap
            return []
        self._sent_at, self._message_time = now, time_ns
        return groups
