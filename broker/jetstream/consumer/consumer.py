"""The replicated state of one consumer.

Owns: configuration, position, ack state; changed only by log entries and the removals they cause.
May not touch: clocks (commands carry their time), delivery, timers; it only reads the store.
Spec: JetStream consumers: deliver policies, consumer info, pause, reset, purge."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence, Set
from itertools import chain
from typing import Protocol

import msgspec

from broker.jetstream.commands.consumer_commands import ConsumerAcks, ConsumerProgress, from_runs
from broker.jetstream.commands.stream_commands import (
    ConsumerCommand,
    CreateConsumer,
    PauseConsumer,
    ResetConsumer,
    UpdateConsumer,
)
from broker.jetstream.config import AckPolicy, ConsumerConfig
from broker.jetstream.consumer.ack_floor import AckFloor
from broker.jetstream.consumer.start_position import Start, reset_start, sequences, take_out
from broker.jetstream.consumer.stream_protocol import HomeStream
from broker.jetstream.errors import JetStreamError
from broker.jetstream.strict_json import SEQUENCE_MAX
from broker.subjects import Patterns, Steps, finish


class ConsumerNumbers(msgspec.Struct, frozen=True):
    """The numbers of ConsumerInfo. Times are 0 before the first delivery or ack. A struct, because
    a frozen dataclass takes much longer to make, and /metrics makes one per consumer."""

    consumer_seq: int
    stream_seq: int
    last_delivered_ns: int
    floor_consumer_seq: int
    floor_stream_seq: int
    last_acked_ns: int
    num_ack_pending: int
    num_redelivered: int
    num_waiting: int
    num_pending: int
    push_bound: bool
    paused_until_ns: int  # 0 when not paused
    pinned_id: str = ""  # pin id of the pinned client, if there is one
    pinned_ns: int = 0


class ConsumerWatcher(Protocol):
    """Notified of changes that log entries make to the consumer: the leader's Delivery."""

    def config_changed(self, old: ConsumerConfig) -> None: ...
    def was_reset(self) -> None: ...
    def messages_removed(self, seqs: Sequence[int]) -> None: ...
    def range_removed(self, first: int, last: int) -> None: ...
    def passed_over(self, last: int) -> None: ...


class _Image(msgspec.Struct, array_like=True):
    """The encoded form. New fields go to the end, with a default."""

    name: str
    config: ConsumerConfig
    incarnation: int
    epoch: int
    created_ns: int
    state: tuple[Sequence[int], ...]
    initial: list[int]
    resume_after: int
    last_delivered_ns: int
    last_acked_ns: int
    removed_ahead: int


def image_of(name: str, config: ConsumerConfig, state: AckFloor, *, created_ns: int) -> bytes:
    """The image of a consumer that was kept by another server."""
    return msgspec.msgpack.encode(
        _Image(
            name=name,
            config=config,
            incarnation=0,
            epoch=0,
            created_ns=created_ns,
            state=state.pack(),
            initial=[],
            resume_after=0,
            last_delivered_ns=0,
            last_acked_ns=0,
            removed_ahead=0,
        )
    )


class BadImage(ValueError):
    """These bytes are not the image of a consumer; str() says why."""


def check_image(blob: bytes) -> tuple[str, ConsumerConfig]:
    """The name and the configuration in an image that did not come from a replica. Once it is in
    the log, every replica has to decode it. Raises BadImage."""
    try:
        image = msgspec.msgpack.decode(blob, type=_Image)
        state = AckFloor.unpack(image.state)
        packed = state.pack()
        initial = sequences(image.initial).tolist()
    except (ValueError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise BadImage(f"a consumer cannot be decoded: {error}") from error
    times = (image.created_ns, image.last_delivered_ns, image.last_acked_ns)
    numbers = chain(*packed, initial, times, (image.resume_after, image.removed_ahead))
    if [*image.state[1]] != packed[1] or not all(0 <= one <= SEQUENCE_MAX for one in numbers):
        raise BadImage(f"consumer {image.name[:40]!r} has impossible sequences")
    return image.name, image.config


class Consumer:
    """One consumer as every replica holds it. `stream` is the stream it belongs to."""

    def __init__(
        self, stream: HomeStream, name: str, config: ConsumerConfig, *, index: int, created_ns: int
    ) -> None:
        self.stream = stream
        self.name = name
        self._filter_tree: Patterns | None = None  # built by the first `wants`
        self._set_config(config)
        self.incarnation = index
        self.epoch = index
        self.created_ns = created_ns
        self.state = AckFloor()
        # Deliver policy last_per_subject: those messages that were the last of their subject at
        # creation and are not yet delivered, ascending. Then comes everything above resume_after.
        self.initial = sequences()
        self.resume_after = 0
        self.last_delivered_ns = 0
        self.last_acked_ns = 0
        # The highest sequence that was removed above the replicated position. The leader may have
        # delivered it before: a Progress up to this sequence may name removed messages.
        self.removed_ahead = 0
        self.watcher: ConsumerWatcher | None = None  # not replicated

    @classmethod
    def create(
        cls, stream: HomeStream, command: CreateConsumer, *, index: int, start: Start
    ) -> Consumer:
        now_ns = command.now_ns
        consumer = cls(stream, command.name, command.config, index=index, created_ns=now_ns)
        consumer._begin(start)
        return consumer

    # Commands

    def apply(self, command: ConsumerCommand, *, index: int) -> object:
        """Returns None, a JetStreamError (not raised), or the sequence a reset went to."""
        match command:
            case UpdateConsumer():
                config = msgspec.structs.replace(
                    command.config, pause_until=self.config.pause_until
                )
                self._configure(config)
                return None
            case PauseConsumer():
                goes_on = command.kept or command.until_ns > command.now_ns
                until = (command.until_ns or None) if goes_on else None
                self._configure(msgspec.structs.replace(self.config, pause_until=until))
                return None
            case ResetConsumer():
                return self._reset(command, index)

    def apply_progress(self, progress: ConsumerProgress, *, now_ns: int) -> None:
        if progress.epoch != self.epoch:
            return
        state, first, again = self.state, progress.first, progress.again
        before = state.stream_seq
        if self.config.ack_policy is AckPolicy.NONE:
            state.deliver_unacked(
                stream_seq=progress.stream_seq, consumer_seq=progress.consumer_seq
            )
        else:
            for i in range(0, len(first), 3):
                low, consumer_seq, count = first[i], first[i + 1], first[i + 2]
                state.deliver(low, low + count - 1, consumer_seq=consumer_seq)
            for i in range(0, len(again), 2):
                state.deliver_again(again[i], deliveries=again[i + 1])
            state.delivered_up_to(
                stream_seq=progress.stream_seq, consumer_seq=progress.consumer_seq
            )
            self._drop_missing(first)
        self.last_delivered_ns = now_ns
        self._trim_initial()
        if self.config.ack_policy is AckPolicy.NONE and state.stream_seq > before:
            self.stream.consumer_acked(self, range(before + 1, state.stream_seq + 1))

    def apply_acks(self, acks: ConsumerAcks, *, now_ns: int) -> None:
        if acks.epoch != self.epoch:
            return
        settled = self.state.ack(from_runs(acks.acked)) if acks.acked else []
        if acks.up_to:
            settled += self.state.ack_up_to(acks.up_to[0], consumer_seq=acks.up_to[1])
        if acks.exhausted:
            self.state.exhaust(from_runs(acks.exhausted))
        if acks.floor:
            self.state.raise_floor(acks.floor[0], acks.floor[1])
        if acks.acked or acks.up_to:
            self.last_acked_ns = now_ns
        if settled:
            self.stream.consumer_acked(self, settled)

    # Removals, in log order on every replica

    def removed(self, seqs: Sequence[int], known: Set[int] | None = None) -> None:
        """These messages were removed from the stream. Pending ones count as terminated. `known`
        has the same sequences as a set, so that a consumer with few pending messages does not have
        to visit all of them."""
        if not seqs:
            return
        self.state.remove(seqs, known)
        self._removed_up_to(max(seqs))
        if self.initial:
            take_out(self.initial, seqs)
        if self.watcher is not None:
            self.watcher.messages_removed(seqs)

    def removed_range(self, first: int, last: int) -> None:
        """Nothing from first to last is stored any more. The position moves only if the stream is
        empty now: messages that a limit dropped undelivered are not reported as delivered."""
        self.state.remove_range(first, last)
        self._removed_up_to(last)
        if self.initial:
            del self.initial[bisect_left(self.initial, first) : bisect_right(self.initial, last)]
        if self.watcher is not None:
            self.watcher.range_removed(first, last)
        if not self.stream.store.messages:
            self.purged(last + 1)

    def purged(self, first_seq: int) -> None:
        """The stream was purged: move position and floor past the removed messages."""
        self.state.pass_over(first_seq - 1)
        if self.watcher is not None:
            self.watcher.passed_over(first_seq - 1)

    # Questions

    def wants(self, subject: bytes) -> bool:
        if not self.filters:
            return True
        if self._filter_tree is None:
            self._filter_tree = Patterns(self.filters)
        return self._filter_tree.take(subject)

    def settled(self, seq: int) -> bool:
        """This consumer no longer needs `seq`: acked, skipped, or not selected at creation."""
        if self.state.settled(seq):
            return True
        if self.resume_after and self.state.stream_seq < seq <= self.resume_after:
            at = bisect_left(self.initial, seq)
            return at == len(self.initial) or self.initial[at] != seq
        return False

    def paused_until_ns(self, now_ns: int) -> int:
        """The end of the current pause, or 0."""
        until = self.config.pause_until or 0
        return until if until > now_ns else 0

    def counting(self) -> Steps[int]:
        """num_pending: messages not yet delivered. Counts them; the leader keeps a running number
        instead (delivery/num_pending.py)."""
        store, filters = self.stream.store, self.filters
        before, start = 0, self.state.stream_seq + 1
        if self.state.stream_seq < self.resume_after:
            before, start = len(self.initial), self.resume_after + 1
        counted = yield from store.count_matching_steps(filters, start, store.last_seq)
        return before + counted

    def num_pending(self) -> int:
        return finish(self.counting())

    def numbers(self, now_ns: int, *, num_pending: int | None = None) -> ConsumerNumbers:
        """The committed numbers. Delivery.numbers on the leader is ahead of these; the reply to a
        create request shows these, which are the numbers before the first delivery."""
        state = self.state
        return ConsumerNumbers(
            consumer_seq=state.consumer_seq,
            stream_seq=state.stream_seq,
            last_delivered_ns=self.last_delivered_ns,
            floor_consumer_seq=state.floor_consumer_seq,
            floor_stream_seq=state.floor_stream_seq,
            last_acked_ns=self.last_acked_ns,
            num_ack_pending=len(state.pending),
            num_redelivered=0 if self.config.max_deliver == 1 else len(state.redelivered),
            num_waiting=0,
            num_pending=self.num_pending() if num_pending is None else num_pending,
            push_bound=False,
            paused_until_ns=self.paused_until_ns(now_ns),
        )

    # Encoding

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(
            _Image(
                name=self.name,
                config=self.config,
                incarnation=self.incarnation,
                epoch=self.epoch,
                created_ns=self.created_ns,
                state=self.state.pack(),
                initial=self.initial.tolist(),
                resume_after=self.resume_after,
                last_delivered_ns=self.last_delivered_ns,
                last_acked_ns=self.last_acked_ns,
                removed_ahead=self.removed_ahead,
            )
        )

    @classmethod
    def decode(cls, stream: HomeStream, blob: bytes) -> Consumer:
        image = msgspec.msgpack.decode(blob, type=_Image)
        consumer = cls(
            stream, image.name, image.config, index=image.incarnation, created_ns=image.created_ns
        )
        consumer.epoch = image.epoch
        consumer.state = AckFloor.unpack(image.state)
        consumer.initial = sequences(image.initial)
        consumer.resume_after = image.resume_after
        consumer.last_delivered_ns = image.last_delivered_ns
        consumer.last_acked_ns = image.last_acked_ns
        consumer.removed_ahead = image.removed_ahead
        return consumer

    def _begin(self, start: Start) -> None:
        self.state.reset(start.seq - 1)
        self.initial = start.initial
        self.resume_after = start.resume_after

    def _set_config(self, config: ConsumerConfig) -> None:
        self.config = config
        # Cached: there may be thousands of filters, and every delivery reads them.
        self.filters = config.filters
        self._filter_tree = None

    def _configure(self, config: ConsumerConfig) -> None:
        old = self.config
        self._set_config(config)
        if self.watcher is not None:
            self.watcher.config_changed(old)

    def _reset(self, command: ResetConsumer, index: int) -> int | JetStreamError:
        target = reset_start(
            self.config, self.stream.store, command.seq, floor=self.state.floor_stream_seq
        )
        if isinstance(target, JetStreamError):
            return target
        self._begin(Start(target))
        self.last_delivered_ns = self.last_acked_ns = 0
        self.epoch = index
        if self.watcher is not None:
            self.watcher.was_reset()
        return target

    def _removed_up_to(self, seq: int) -> None:
        if seq > self.state.stream_seq:
            self.removed_ahead = max(self.removed_ahead, seq)

    def _drop_missing(self, first: Sequence[int]) -> None:
        """Forget deliveries of messages that were removed by an entry before this one."""
        missing: list[int] = []
        for i in range(0, len(first), 3):
            low, end = first[i], first[i] + first[i + 2]
            if low > self.removed_ahead:
                break
            missing += [seq for seq in range(low, end) if not self.stream.store.has(seq)]
        if missing:
            self.state.remove(missing)

    def _trim_initial(self) -> None:
        if self.initial:
            del self.initial[: bisect_right(self.initial, self.state.stream_seq)]
