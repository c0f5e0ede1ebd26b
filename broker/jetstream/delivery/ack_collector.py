"""Collects the acks of one consumer between two log entries, and handles NAK, TERM and +WPI.

Owns: acks received and not yet proposed, replies waiting for a confirmation, acks chosen as
samples, messages given up after max_deliver.
May not touch: the replicated state; this changes the live one.
Spec: JetStream acknowledgements: a double ack is confirmed after its entry is committed;
max_deliver; sample_freq."""

from __future__ import annotations

from typing import Protocol, assert_never

from broker.jetstream.commands.consumer_commands import ConsumerAcks, to_runs
from broker.jetstream.config import AckPolicy, ConsumerConfig
from broker.jetstream.consumer.ack_floor import AckFloor
from broker.jetstream.consumer.ack_subjects import AckKind, classify, nak_delay_ns, term_reason
from broker.jetstream.delivery.cursor import Cursor
from broker.jetstream.delivery.effects import Advisory, Confirm, Effect
from broker.jetstream.delivery.leader_time import LeaderTime
from broker.jetstream.delivery.replication import WAITING_MAX, Urgency


class Sampler:
    """Chooses the acks to measure: `sample_freq` of every hundred, evenly spread."""

    def __init__(self, percent: int, cursor: Cursor, effects: list[Effect]) -> None:
        self._percent = percent
        self._cursor = cursor
        self._effects = effects
        self._hundredths = 0  # of the next sample
        self.candidates: dict[int, int] = {}  # stream seq -> consumer seq of the delivery acked

    def sample(self, now: int) -> None:
        """Measure some of the candidates, which are about to be settled."""
        live = self._cursor.live
        for seq, consumer_seq in self.candidates.items():
            if seq not in live.pending:
                continue
            self._hundredths += min(self._percent, 100)
            if self._hundredths < 100:
                continue
            self._hundredths -= 100
            deliveries = live.deliveries(seq)
            sent_at = self._cursor.redelivery.sent_at(seq, deliveries=deliveries)
            elapsed = max(now - sent_at, 1) if sent_at else 1
            self._effects.append(Advisory("ack", seq, consumer_seq, deliveries, elapsed_ns=elapsed))
        self.candidates.clear()


class AckedConsumer(Protocol):
    """The replicated consumer, as far as its acks are concerned."""

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> ConsumerConfig: ...
    @property
    def epoch(self) -> int: ...
    @property
    def state(self) -> AckFloor: ...
    @property
    def last_acked_ns(self) -> int: ...


class AckCollector:
    """`take` is the hot path and only stores; `settle` applies what was stored."""

    def __init__(
        self, consumer: AckedConsumer, cursor: Cursor, effects: list[Effect], time: LeaderTime
    ) -> None:
        self._consumer = consumer
        self._time = time
        self._cursor = cursor
        self._effects = effects
        self._all = consumer.config.ack_policy in (AckPolicy.ALL, AckPolicy.FLOW_CONTROL)
        self._arrived: list[int] = []
        self._arrived_up_to = (0, 0)  # ack all: (stream seq, consumer seq)
        self._acked: list[int] = []
        self._up_to = (0, 0)
        self._exhausted: list[int] = []
        self._floor_differs = False  # the live floor differs from the replicated one
        self._confirms: list[bytes] = []
        self.last_acked_ns = consumer.last_acked_ns
        self._sampler: Sampler | None = None
        self.reconfigure()

    def reconfigure(self) -> None:
        """The configuration changed: restart sampling."""
        config = self._consumer.config
        sampled = config.sample_percent and config.ack_policy is AckPolicy.EXPLICIT
        self._sampler = (
            Sampler(config.sample_percent, self._cursor, self._effects) if sampled else None
        )

    def take(
        self, stream_seq: int, consumer_seq: int, reply: bytes, *, measured: bool = True
    ) -> None:
        """Store one ack. `measured`: it may be sampled; a termination is not."""
        if self._all:
            self._arrived_up_to = max(self._arrived_up_to, (stream_seq, consumer_seq))
        else:
            self._arrived.append(stream_seq)
            if self._sampler is not None and measured:
                self._sampler.candidates[stream_seq] = consumer_seq
        if reply:
            self._confirms.append(reply)

    def take_many(self, stream_seqs: list[int], consumer_seqs: list[int]) -> None:
        """Like `take`, for acks without replies."""
        if self._all:
            for pair in zip(stream_seqs, consumer_seqs, strict=True):
                self._arrived_up_to = max(self._arrived_up_to, pair)
            return
        self._arrived += stream_seqs
        if self._sampler is not None:
            self._sampler.candidates.update(zip(stream_seqs, consumer_seqs, strict=True))

    def take_special(
        self, stream_seq: int, consumer_seq: int, payload: bytes, reply: bytes, now: int
    ) -> AckKind:
        """Act on a payload that is not a plain ack. After NEXT the caller handles the pull request
        that follows the ack, and answers it."""
        kind = classify(payload)
        self.settle(now)
        live = self._cursor.live
        match kind:
            case AckKind.ACK | AckKind.TERM:
                term = kind is AckKind.TERM
                if term and stream_seq in live.pending:
                    self._advise("terminated", stream_seq, consumer_seq, term_reason(payload))
                self.take(stream_seq, consumer_seq, reply, measured=not term)
                return kind
            case AckKind.NEXT:
                self.take(stream_seq, consumer_seq, b"")
                return kind
            case AckKind.NAK:
                if stream_seq in live.pending:
                    self._advise("nak", stream_seq, consumer_seq)
                    self._nak(stream_seq, nak_delay_ns(payload), now)
            case AckKind.IN_PROGRESS:
                if stream_seq in live.pending:
                    deliveries = live.deliveries(stream_seq)
                    self._cursor.redelivery.sent_again(stream_seq, now, deliveries=deliveries)
            case AckKind.OTHER:
                pass
            case unknown:
                assert_never(unknown)
        if reply:
            self._effects.append(Confirm(reply))
        return kind

    def settle(self, now: int) -> None:
        """Apply the acks received since the last call to the live state."""
        live, redelivery = self._cursor.live, self._cursor.redelivery
        if self._arrived:
            if self._sampler is not None:
                self._sampler.sample(now)
            settled = live.ack(self._arrived)
            redelivery.forget(settled)
            self._acked += settled
            self._arrived = []
            self.last_acked_ns = self._time.to_cluster(now)
        if self._arrived_up_to[0]:
            stream_seq, consumer_seq = self._arrived_up_to
            self._arrived_up_to = (0, 0)
            if stream_seq > live.floor_stream_seq:
                redelivery.forget(live.ack_up_to(stream_seq, consumer_seq=consumer_seq))
                # The resulting floor, not the ack: several acks may share one entry.
                self._up_to = (live.floor_stream_seq, live.floor_consumer_seq)
            self.last_acked_ns = self._time.to_cluster(now)

    def redeliver(self, seqs: list[int]) -> None:
        """Queue for redelivery; give up those that were delivered max_deliver times."""
        if not seqs:
            return
        live, most = self._cursor.live, self._consumer.config.max_deliver
        if most > 0:
            exhausted = [seq for seq in seqs if live.deliveries(seq) >= most]
            if exhausted:
                for seq in exhausted:
                    self._advise("max_deliver", seq)
                self._give_up(exhausted)
                seqs = [seq for seq in seqs if seq in live.pending]
        self._cursor.redelivery.enqueue(seqs)

    def removed(self, seqs: list[int]) -> None:
        """These messages were pending and have been removed from the stream."""
        for seq in seqs:
            self._advise("terminated", seq, reason="Unacknowledged message was deleted")

    def align_floor(self) -> None:
        """Called after a removal. On the leader the removal follows deliveries and acks that the
        replicas apply only later, so the floors may differ. Raise the live floor to the replicated
        one; if it is ahead, replicate it."""
        live, replicated = self._cursor.live, self._consumer.state
        live.raise_floor(*replicated.floor)
        self._floor_differs = self._cursor.tracked and live.floor != replicated.floor

    @property
    def can_wait(self) -> bool:
        """Whether few acks have arrived, and no ack is sampled or confirmed."""
        few = len(self._arrived) + len(self._acked) < WAITING_MAX
        return few and self._sampler is None and not self._confirms

    def urgency(self, *, removing: bool) -> Urgency:
        """`removing`: an ack removes its message from the stream, which is visible to all
        clients."""
        if self._confirms:
            return Urgency.NOW
        count = len(self._acked) + len(self._exhausted)
        if not (count or self._up_to[0] or self._floor_differs):
            return Urgency.NOTHING
        return Urgency.NOW if removing or count >= WAITING_MAX else Urgency.CAN_WAIT

    def take_all(self, now: int) -> tuple[ConsumerAcks, list[bytes]] | None:
        """What to propose, and the replies to confirm after it. An ack that changed nothing is
        confirmed after an entry as well: the ack it repeats may not be committed yet."""
        self.settle(now)
        if not (
            self._acked
            or self._up_to[0]
            or self._exhausted
            or self._floor_differs
            or self._confirms
        ):
            return None
        # A message that was given up does not hold back the floor at the next ack. Replicas apply
        # acks first, so if one entry has both, they need the resulting floor.
        told = self._floor_differs or bool(self._exhausted)
        acks = ConsumerAcks(
            self._consumer.name,
            self._consumer.epoch,
            to_runs(self._acked),
            self._up_to if self._up_to[0] else (),
            to_runs(self._exhausted),
            self._cursor.live.floor if told else (),
        )
        confirms = self._confirms
        self._acked, self._exhausted, self._confirms = [], [], []
        self._up_to = (0, 0)
        self._floor_differs = False
        return acks, confirms

    def forget(self) -> None:
        """The consumer was reset. Requested confirmations are still sent."""
        self._arrived, self._acked, self._exhausted = [], [], []
        self.last_acked_ns = 0
        self._arrived_up_to = self._up_to = (0, 0)
        self._floor_differs = False

    def _nak(self, seq: int, delay_ns: int | None, now: int) -> None:
        if delay_ns is not None:
            self._cursor.redelivery.schedule(seq, now + delay_ns)
        else:
            self.redeliver([seq])

    def _give_up(self, seqs: list[int]) -> None:
        self._cursor.live.exhaust(seqs)
        self._cursor.redelivery.forget(seqs)
        self._exhausted += seqs

    def _advise(self, kind: str, seq: int, consumer_seq: int = 0, reason: str = "") -> None:
        """`consumer_seq` is the delivery that the client answered, if it did."""
        live = self._cursor.live
        consumer_seq = consumer_seq or live.pending.get(seq, 0)
        self._effects.append(Advisory(kind, seq, consumer_seq, live.deliveries(seq), reason))
