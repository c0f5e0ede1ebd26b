"""Acknowledgements of one consumer between two log entries.

Owns: what has arrived, what is to be proposed, who waits for a confirmation.
May not touch: the replicated state; it changes the live one.
Spec: double acks are confirmed after their entry is committed."""

from __future__ import annotations

from broker.jetstream.commands.consumer_commands import ConsumerAcks, to_runs
from broker.jetstream.config import AckPolicy
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.delivery.cursor import Cursor
from broker.jetstream.delivery.effects import Advisory, Effect


class Sampler:
    """Chooses acks to measure: of every hundred as many as `sample_freq` says, evenly spread."""

    def __init__(self, percent: int, cursor: Cursor, effects: list[Effect]) -> None:
        self._percent = percent
        self._cursor = cursor
        self._effects = effects
        self._hundredths = 0  # of the next sample
        self.heard: dict[int, int] = {}  # stream seq -> consumer seq of the delivery acked

    def look(self, now: int) -> None:
        """What was heard is about to be settled."""
        live = self._cursor.live
        for seq, consumer_seq in self.heard.items():
            if seq not in live.pending:
                continue
            self._hundredths += min(self._percent, 100)
            if self._hundredths < 100:
                continue
            self._hundredths -= 100
            deliveries = live.deliveries(seq)
            sent_at = self._cursor.redelivery.sent_at(seq, deliveries=deliveries)
            elapsed = max(now - sent_at, 1) if sent_at else 1
            fact = Advisory("ack", seq, consumer_seq, deliveries, elapsed_ns=elapsed)
            self._effects.append(fact)
        self.heard.clear()


class AckCollector:
    """`take` is the hot path and only writes down; `settle` applies what it wrote."""

    def __init__(self, consumer: Consumer, cursor: Cursor) -> None:
        self._consumer = consumer
        self._cursor = cursor
        self._all = consumer.config.ack_policy in (AckPolicy.ALL, AckPolicy.FLOW_CONTROL)
        self._arrived: list[int] = []
        self._arrived_up_to = (0, 0)  # ack all: (stream seq, consumer seq)
        self._acked: list[int] = []
        self._up_to = (0, 0)
        self._exhausted: list[int] = []
        self._floor_apart = False  # from the replicated one, since a removal
        self._confirms: list[bytes] = []
        self.last_acked_ns = consumer.last_acked_ns
        self.sampler: Sampler | None = None

    def take(
        self, stream_seq: int, consumer_seq: int, reply: bytes, *, measured: bool = True
    ) -> None:
        """`measured`: it may be sampled; a termination is not."""
        if self._all:
            self._arrived_up_to = max(self._arrived_up_to, (stream_seq, consumer_seq))
        else:
            self._arrived.append(stream_seq)
            if self.sampler is not None and measured:
                self.sampler.heard[stream_seq] = consumer_seq
        if reply:
            self._confirms.append(reply)

    def take_many(self, stream_seqs: list[int], consumer_seqs: list[int]) -> None:
        """As `take` for acks without replies."""
        if self._all:
            for pair in zip(stream_seqs, consumer_seqs, strict=True):
                self._arrived_up_to = max(self._arrived_up_to, pair)
            return
        self._arrived += stream_seqs
        if self.sampler is not None:
            self.sampler.heard.update(zip(stream_seqs, consumer_seqs, strict=True))

    def settle(self, now: int) -> None:
        """Bring the live state up to date."""
        live, redelivery = self._cursor.live, self._cursor.redelivery
        if self._arrived:
            if self.sampler is not None:
                self.sampler.look(now)
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
                # As the floor has become: several acks may go into one entry.
                self._up_to = (live.floor_stream_seq, live.floor_consumer_seq)
            self.last_acked_ns = now

    def give_up(self, seqs: list[int]) -> None:
        """Delivered max_deliver times."""
        self._cursor.live.exhaust(seqs)
        self._cursor.redelivery.forget(seqs)
        self._exhausted += seqs

    def align_floor(self) -> None:
        """Messages were removed, here behind deliveries and acks that the replicas see only after
        it. The live floor takes what the replicated one has gained, and is told if it is ahead."""
        live, replicated = self._cursor.live, self._consumer.state
        live.raise_floor(*replicated.floor)
        self._floor_apart = self._cursor.tracked and live.floor != replicated.floor

    def take_all(self, now: int) -> tuple[ConsumerAcks, list[bytes]] | None:
        """What to propose and whom to confirm after it. An ack that changed nothing has its
        confirmation ordered by an entry all the same: what it repeats may not be committed yet."""
        self.settle(now)
        if not (
            self._acked or self._up_to[0] or self._exhausted or self._floor_apart or self._confirms
        ):
            return None
        acks = ConsumerAcks(
            self._consumer.name,
            self._consumer.epoch,
            to_runs(self._acked),
            self._up_to if self._up_to[0] else (),
            to_runs(self._exhausted),
            self._cursor.live.floor if self._floor_apart else (),
        )
        confirms = self._confirms
        self._acked, self._exhausted, self._confirms = [], [], []
        self._up_to = (0, 0)
        self._floor_apart = False
        return acks, confirms

    def forget(self) -> None:
        """The consumer started over. Who asked for a confirmation still gets it."""
        self._arrived, self._acked, self._exhausted = [], [], []
        self.last_acked_ns = 0
        self._arrived_up_to = self._up_to = (0, 0)
        self._floor_apart = False
