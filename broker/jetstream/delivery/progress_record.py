"""What the leader has sent since it last told its replicas.

Owns: the compact form of deliveries between two Progress entries.
May not touch: ack state; it only writes down.
Spec: ConsumerProgress: first deliveries as runs, repeated ones one by one."""

from __future__ import annotations

from typing import Final

from broker.jetstream.commands.consumer_commands import ConsumerProgress

# Ack none: nothing depends on its progress but info and, after a change of leader, where to
# resume. So it is told rarely.
LAZY_INTERVAL_NS: Final = 250_000_000
LAZY_MESSAGES: Final = 10_000


class ProgressRecord:
    """`lazy` for consumers that need no acks."""

    __slots__ = ("_again", "_first", "_lazy", "_messages", "_since")

    def __init__(self, *, lazy: bool) -> None:
        self._lazy = lazy
        self.clear()

    def clear(self) -> None:
        self._first: list[int] = []
        self._again: list[int] = []
        self._messages = 0
        self._since = 0

    def sent(self, count: int, now: int) -> None:
        """Messages of which only the number matters."""
        if not self._messages:
            self._since = now
        self._messages += count

    def sent_run(self, first: int, *, consumer_seq: int, count: int, now: int) -> None:
        """Stream sequences from `first` on, with consumer sequences from `consumer_seq` on."""
        self.sent(count, now)
        runs = self._first
        if runs and runs[-3] + runs[-1] == first and runs[-2] + runs[-1] == consumer_seq:
            runs[-1] += count
        else:
            runs += (first, consumer_seq, count)

    def sent_again(self, stream_seq: int, *, deliveries: int, now: int) -> None:
        self.sent(1, now)
        self._again += (stream_seq, deliveries)

    def deadline(self) -> int | None:
        """When a lazy record must be told; None if there is none."""
        return self._since + LAZY_INTERVAL_NS if self._lazy and self._messages else None

    def take(
        self, consumer: str, now: int, *, epoch: int, consumer_seq: int, stream_seq: int
    ) -> ConsumerProgress | None:
        """The record, which is empty afterwards; None if there is nothing to tell yet."""
        if not self._messages:
            return None
        if self._lazy and self._messages < LAZY_MESSAGES and now < self._since + LAZY_INTERVAL_NS:
            return None
        progress = ConsumerProgress(
            consumer, epoch, consumer_seq, stream_seq, self._first, self._again
        )
        self.clear()
        return progress
