"""A test bench for one consumer: real store, real state, a clock set by the test.

`commit` applies commands to two replicas and compares them. `crash` discards the delivery engine
and builds a new one from the replicated state, as a new leader does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from broker.jetstream.commands.consumer_commands import Acks, DeliveryProgress
from broker.jetstream.commands.stream_commands import (
    AnyCommand,
    CreateConsumer,
    PauseConsumer,
    ResetConsumer,
    UpdateConsumer,
    decode,
    encode,
)
from broker.jetstream.config import AckPolicy, ConsumerConfig, StreamConfig
from broker.jetstream.consumer.ack_subjects import parse_ack_subject
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.consumer.start_position import start_of
from broker.jetstream.consumer.stream_protocol import AckingConsumer
from broker.jetstream.delivery.dispatch import PumpLimits
from broker.jetstream.delivery.effects import (
    Advisory,
    Confirm,
    Deliver,
    Effect,
    Propose,
    StatusMessage,
)
from broker.jetstream.delivery.engine import Delivery
from broker.jetstream.delivery.leader_time import LeaderTime
from broker.jetstream.delivery.pull_queue import LEADERSHIP_CHANGE
from broker.jetstream.delivery.replication import TurnProposal, flush
from broker.store.messages import MessageStore
from broker.subjects import finish

MS = 1_000_000
S = 1000 * MS
START = 1_700_000_000 * S


def config_of(**fields: Any) -> ConsumerConfig:
    """A consumer configuration with the defaults that validation fills in."""
    config = msgspec.convert(fields, ConsumerConfig)
    acks = config.ack_policy is not AckPolicy.NONE
    changes: dict[str, Any] = {}
    if acks and not config.ack_wait:
        changes["ack_wait"] = config.backoff[0] if config.backoff else 30 * S
    if acks and not config.max_ack_pending:
        changes["max_ack_pending"] = 1000
    if not config.max_deliver:
        changes["max_deliver"] = -1
    if not config.is_push and not config.max_waiting:
        changes["max_waiting"] = 512
    if not config.durable_name and not config.inactive_threshold:
        changes["inactive_threshold"] = 5 * S
    return msgspec.structs.replace(config, **changes)


class BenchStream:
    """Implements HomeStream; records which messages consumers settled."""

    def __init__(self, config: StreamConfig) -> None:
        self.config = config
        self.store = MessageStore()
        self.settled: list[int] = []

    def consumer_acked(self, consumer: AckingConsumer, seqs: Sequence[int]) -> None:
        self.settled += seqs


class Bench:
    """`now` moves only by `at` and `advance`, the time of the cluster besides by `step`."""

    def __init__(self, *, max_msgs_per_subject: int = -1, **consumer: Any) -> None:
        self.now = START
        self.stepped = 0
        self.time = LeaderTime(
            steady_ns=lambda: self.now, cluster_ns=lambda: self.now + self.stepped
        )
        self.stream = BenchStream(StreamConfig(name="S", max_msgs_per_subject=max_msgs_per_subject))
        self.other_stream = BenchStream(self.stream.config)
        self.no_interest: set[bytes] = set()
        self.index = 0
        self.limits = PumpLimits()
        self.confirmed: list[bytes] = []
        self.pending_proposals: list[TurnProposal] = []
        self.consumer: Consumer | None = None
        self.replica: Consumer | None = None
        self.engine: Delivery | None = None
        self.delivered: list[tuple[int, int, int]] = []  # stream seq, consumer seq, count
        self.deleted = False
        if consumer:
            self.create(**consumer)

    # The stream

    def publish(self, *subjects: str, data: bytes = b"x", headers: bytes = b"") -> None:
        for subject in subjects:
            for stream in (self.stream, self.other_stream):
                stream.store.append(subject.encode(), headers, data, time_ns=self.now)

    def remove(self, *seqs: int) -> None:
        for stream, consumer in self._pairs():
            for seq in seqs:
                stream.store.remove(seq)
            consumer.removed(list(seqs))

    def drop(self, below: int) -> None:
        """Remove messages below a sequence, as stream limits do."""
        for stream, consumer in self._pairs():
            first = stream.store.first_seq
            stream.store.drop_before(below)
            consumer.removed_range(first, below - 1)

    def purge(self, below: int) -> None:
        self.drop(below)
        for stream, consumer in self._pairs():
            consumer.purged(stream.store.first_seq)

    def _pairs(self) -> list[tuple[BenchStream, Consumer]]:
        return [(self.stream, self.of), (self.other_stream, self.twin)]

    # The consumer

    @property
    def of(self) -> Consumer:
        assert self.consumer is not None
        return self.consumer

    @property
    def twin(self) -> Consumer:
        assert self.replica is not None
        return self.replica

    @property
    def delivery(self) -> Delivery:
        assert self.engine is not None
        return self.engine

    def create(self, **fields: Any) -> None:
        command = CreateConsumer(self.now, "C", config_of(**fields))
        self.index += 1
        self.consumer, self.replica = (
            Consumer.create(
                stream,
                command,
                index=self.index,
                start=finish(
                    start_of(
                        command.config,
                        stream.store,
                        max_msgs_per_subject=stream.config.max_msgs_per_subject,
                    )
                ),
            )
            for stream in (self.stream, self.other_stream)
        )
        self._open()

    def _open(self) -> None:
        def has_interest(reply: bytes) -> bool:
            return reply not in self.no_interest

        self.engine = Delivery(
            self.of, now=self.now, time=self.time, has_interest=has_interest, limits=self.limits
        )

    def crash(self) -> None:
        """The leader dies: uncommitted commands are lost, the replica takes over."""
        self.delivery.close(LEADERSHIP_CHANGE)
        self.pending_proposals.clear()
        self.stream, self.other_stream = self.other_stream, self.stream
        self.consumer = Consumer.decode(self.stream, self.twin.encode())
        self.replica = Consumer.decode(self.other_stream, self.twin.encode())
        self._open()

    def command(self, command: AnyCommand) -> object:
        """Commit one command at once."""
        self.index += 1
        again = decode(encode(command))
        results = []
        for consumer in (self.of, self.twin):
            match again:
                case DeliveryProgress():
                    for progress in again.of:
                        consumer.apply_progress(progress, now_ns=again.now_ns)
                    results.append(None)
                case Acks():
                    for acks in again.of:
                        consumer.apply_acks(acks, now_ns=again.now_ns)
                    results.append(None)
                case UpdateConsumer() | PauseConsumer() | ResetConsumer():
                    results.append(consumer.apply(again, index=self.index))
                case _:
                    raise AssertionError(command)
        assert self.of.encode() == self.twin.encode()
        return results[0]

    def propose(self) -> None:
        """Collect the commands of the engine; they are in flight until commit."""
        proposal = flush([self.delivery], self.now, stamp_ns=self.time.to_cluster(self.now))
        if proposal is not None:
            self.pending_proposals.append(proposal)

    def commit(self) -> list[bytes]:
        """Apply everything in flight. Returns the replies that this confirms."""
        self.propose()
        confirmed: list[bytes] = []
        for proposal in self.pending_proposals:
            for command in proposal.commands:
                self.command(command)
            confirmed += proposal.confirms
        self.pending_proposals.clear()
        self.confirmed += confirmed
        return confirmed

    def update(self, **fields: Any) -> None:
        self.command(UpdateConsumer(self.now, "C", config_of(**fields)))

    def pause(self, until: int) -> None:
        self.command(PauseConsumer(self.now, "C", until))

    def reset(self, seq: int = 0) -> object:
        return self.command(ResetConsumer(self.now, "C", seq))

    # Clients

    def pull(self, reply: str = "r", body: str = "") -> None:
        self.delivery.pull(body.encode(), reply.encode(), self.now)

    def ack(self, seq: int, payload: str = "", reply: str = "", *, consumer_seq: int = 0) -> None:
        if not consumer_seq:
            consumer_seq = next((c for s, c, _ in reversed(self.delivered) if s == seq), seq)
        subject = b"$JS.ACK.S.C.1.%d.%d.%d.0" % (seq, consumer_seq, self.now)
        parsed = parse_ack_subject(subject)
        assert parsed is not None
        self.delivery.ack(parsed, payload.encode(), reply.encode(), self.now)

    def bind(self, *, bound: bool = True) -> None:
        self.delivery.set_interest(bound=bound, now=self.now)

    def advance(self, by: int) -> None:
        self.now += by

    def step(self, by: int) -> None:
        """The leader learns that the time of the cluster is another one."""
        self.stepped += by
        self.time.now()

    # Output

    def pump(self) -> list[Effect]:
        effects = self.delivery.pump(self.now)
        for effect in effects:
            if isinstance(effect, Deliver):
                for k, index in enumerate(effect.indices):
                    count = effect.delivered[k] if effect.delivered else 1
                    seq = effect.rows.seq(index)
                    self.delivered.append((seq, effect.consumer_seq + k, count))
        return effects

    def out(self) -> list[str]:
        """Pump until there is nothing to do, and commit. Returns the effects as text."""
        effects = self.pump()
        while self.delivery.more_work:
            effects += self.pump()
        lines = [text_of(effect) for effect in effects]
        lines += [f"confirm {reply.decode()} (committed)" for reply in self.commit()]
        return lines

    def seqs(self) -> list[int]:
        """As `out`, but returns only the delivered stream sequences."""
        before = len(self.delivered)
        self.out()
        return [seq for seq, _, _ in self.delivered[before:]]


def text_of(effect: Effect) -> str:
    match effect:
        case Deliver():
            seqs = ",".join(str(effect.rows.seq(i)) for i in effect.indices)
            counts = "" if effect.delivered is None else f" count={effect.delivered}"
            only = " headers only" if effect.headers_only else ""
            to = effect.to.decode()
            return (
                f"deliver {to} [{seqs}] cseq={effect.consumer_seq}"
                f" pending={effect.pending}{counts}{only}"
                + (f" pin={effect.pin_id}" if effect.pin_id else "")
            )
        case StatusMessage():
            lines = effect.header.decode().removeprefix("NATS/1.0 ").strip().split("\r\n")
            reply = f" reply={effect.reply.decode()}" if effect.reply else ""
            return f"status {effect.to.decode()} {' | '.join(lines)}{reply}"
        case Confirm():
            return f"confirm {effect.reply.decode()}"
        case Propose():
            return f"propose {type(effect.command).__name__}"
        case Advisory():
            reason = f" {effect.reason}" if effect.reason else ""
            return f"advisory {effect.kind} {effect.stream_seq} x{effect.deliveries}{reason}"
