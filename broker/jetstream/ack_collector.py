"""Acknowledgements of one consumer between two log entries.

Owns: what has arrived, what is to be proposed, who waits for a confirmation.
May not touch: the replicated state; it changes the live one.
Spec: double acks are confirmed after their entry is committed."""

from __future__ import annotations

from broker.jetstream.config import AckPolicy
from broker.jetstream.consumer import Consumer
from broker.jetstream.consumer_commands import ConsumerAcks, to_runs
from broker.jetstream.cursor import Cursor


class AckCollector:
    """`take` is the hot path and only writes down; `settle` applies what it wrote."""

    def __init__(self, consumer: Consumer, cursor: Cursor) -> None:
        self._consumer = consumer
        self._cursor = cursor
        self._all = consumer.config.ack_policy is AckPolicy.ALL
        self._arrived: list[int] = []
        self._arrived_up_to = (0, 0)  # ack all: (stream seq, consumer seq)
        self._acked: list[int] = []
        self._up_to = (0, 0)
        self._exhausted: list[int] = []
        self._confirms: list[bytes] = []
        self.last_acked_ns = consumer.last_acked_ns

    def take(self, stream_seq: int, consumer_seq: int, reply: bytes) -> None:
        if self._all:
            self._arrived_up_to = max(self._arrived_up_to, (stream_seq, consumer_seq))
        else:
            self._arrived.append(stream_seq)
        if reply:
            self._confirms.append(reply)

    def settle(self, now: int) -> None:
        """Bring the live state up to date."""
        live, redelivery = self._cursor.live, self._cursor.redelivery
        if self._arrived:
            settled = live.ack(self._arrived)
            redelivery.forget(settled)
            self._acked += settled
            self._arrived = []
            self.last_acked_ns = now
        if self._arrived_up_to[0]:
            stream_seq, consumer_seq = self._arrived_up_to
            self._arrived_up_to = (0, 0)
            if stream_seq > live.floor_stream_seq:
                redelivery.forget(live.ack_up_to(stream_seq, consumer_seq=consumer_seq))
                self._up_to = (stream_seq, consumer_seq)
            self.last_acked_ns = now

    def give_up(self, seqs: list[int]) -> None:
        """Delivered max_deliver times."""
        self._cursor.live.exhaust(seqs)
        self._cursor.redelivery.forget(seqs)
        self._exhausted += seqs

    def take_all(self, now: int) -> tuple[ConsumerAcks, list[bytes]] | None:
        """What to propose and whom to confirm after it. An ack that changed nothing has its
        confirmation ordered by an entry all the same: what it repeats may not be committed yet."""
        self.settle(now)
        if not (self._acked or self._up_to[0] or self._exhausted or self._confirms):
            return None
        acks = ConsumerAcks(
            self._consumer.name,
            self._consumer.epoch,
            to_runs(self._acked),
            self._up_to if self._up_to[0] else (),
            to_runs(self._exhausted),
        )
        confirms = self._confirms
        self._acked, self._exhausted, self._confirms = [], [], []
        self._up_to = (0, 0)
        return acks, confirms

    def forget(self) -> None:
        """The consumer started over. Who asked for a confirmation still gets it."""
        self._arrived, self._acked, self._exhausted = [], [], []
        self._arrived_up_to = self._up_to = (0, 0)
