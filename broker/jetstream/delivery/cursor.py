"""The position of one consumer on its leader: what was delivered and what comes next.

Owns: the live ack state, which runs ahead of the replicated one, the next message to consider, the
redelivery queue, num_pending, the room under max_ack_pending, the record for the next Progress.
May not touch: receivers, clocks; `now` is an argument.
Spec: JetStream delivery order, last_per_subject, num_pending, removal of unacked messages."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

from broker.jetstream.config import AckPolicy, ConsumerConfig
from broker.jetstream.consumer.ack_floor import AckFloor
from broker.jetstream.consumer.start_position import take_out
from broker.jetstream.consumer.stream_protocol import HomeStream
from broker.jetstream.delivery.effects import Deliver, headers_only_block
from broker.jetstream.delivery.max_ack_pending import MaxAckPending
from broker.jetstream.delivery.num_pending import NumPending
from broker.jetstream.delivery.redelivery import Redelivery
from broker.jetstream.delivery.replication import ProgressRecord
from broker.store.block.codec import Rows

NEVER_NS = 1 << 61
RowGroups = list[tuple[Rows, list[int]]]


class ReplicatedPosition(Protocol):
    """The replicated consumer, as far as its position on the leader is built from it."""

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> ConsumerConfig: ...
    @property
    def filters(self) -> tuple[bytes, ...]: ...
    @property
    def stream(self) -> HomeStream: ...
    @property
    def state(self) -> AckFloor: ...
    @property
    def initial(self) -> array[int]: ...
    @property
    def resume_after(self) -> int: ...


class Cursor:
    """Deliveries are recorded in the order they are sent; a recorded delivery is always sent."""

    def __init__(self, consumer: ReplicatedPosition, now: int) -> None:
        config = consumer.config
        self._consumer = consumer
        self.store = consumer.stream.store
        self.tracked = config.ack_policy is not AckPolicy.NONE
        self.live = AckFloor()
        self.redelivery = Redelivery(ack_wait_ns=_ack_wait_ns(config), backoff=config.backoff)
        self.progress = ProgressRecord(lazy=not self.tracked)
        self._num_pending = NumPending(self.store, consumer.filters)
        self._max_ack_pending = MaxAckPending(config)
        self.next_seq = 1
        self.searching = False  # the last `take` found nothing, and stopped before the end
        self._initial = consumer.initial[:0]
        self.headers_only = config.headers_only
        self._ack_prefix = f"$JS.ACK.{consumer.stream.config.name}.{consumer.name}".encode()
        self.rebuild(now)

    def rebuild(self, now: int) -> None:
        """Start over from the replicated state. The ack wait of everything pending starts now."""
        consumer = self._consumer
        self.live = consumer.state.copy()
        self._initial = consumer.initial[:]
        self.next_seq = self.live.stream_seq + 1
        self._leave_initial()
        self.progress.clear()
        self._num_pending.recount()
        self.redelivery.clear()
        for seq in self.live.pending:
            self.redelivery.sent_again(seq, now, deliveries=self.live.deliveries(seq))

    def reconfigure(self, config: ConsumerConfig) -> None:
        self.redelivery.reconfigure(ack_wait_ns=_ack_wait_ns(config), backoff=config.backoff)
        self.headers_only = config.headers_only
        self._num_pending = NumPending(self.store, self._consumer.filters)
        self._max_ack_pending.reconfigure(config)

    def room(self) -> int:
        """How many new messages max_ack_pending still allows."""
        return self._max_ack_pending.room(len(self.live.pending))

    @property
    def passed(self) -> int:
        """The last stream sequence that was delivered or skipped."""
        return self.next_seq - 1

    def count(self, now: int, *, exact: bool = False) -> int:
        """num_pending."""
        start = self._consumer.resume_after + 1 if self._initial else self.next_seq
        return len(self._initial) + self._num_pending.count(start, now=now, exact=exact)

    def counted(self, now: int, *, exact: bool = False) -> bool:
        """Continue counting num_pending, for some steps. True when `count` has little left to
        do."""
        start = self._consumer.resume_after + 1 if self._initial else self.next_seq
        return self._num_pending.counted(start, now=now, exact=exact)

    def take(self, *, limit_rows: int, limit_bytes: int) -> RowGroups:
        """The next messages for first delivery. The position moves only past messages that do not
        match; `first_deliveries` moves it past the messages returned here."""
        if self._initial:
            groups = self._take_initial(limit_rows)
            if groups or self._initial:
                return groups
        store, filters = self.store, self._consumer.filters
        self.searching = False
        if self.next_seq > store.last_seq:
            return []
        taken = store.examine(filters, self.next_seq, limit_rows, limit_bytes)
        if not taken.count:
            self.next_seq = taken.next_seq
            self.searching = self.next_seq <= store.last_seq
        return taken.groups

    def first_deliveries(self, rows: Rows, indices: list[int], now: int) -> None:
        """Record that these rows, the next ones from `take`, were sent as Deliver effects built
        with `upcoming`. One call covers a whole run, even if several requests shared it."""
        live, count = self.live, len(indices)
        first, last = rows.seq(indices[0]), rows.seq(indices[-1])
        consumer_seq = live.consumer_seq + 1
        if not self.tracked:
            live.deliver_unacked(stream_seq=last, consumer_seq=consumer_seq + count - 1)
            self.progress.sent(count, now)
        elif last - first == count - 1:
            live.deliver(first, last, consumer_seq=consumer_seq)
            self.progress.sent_run(first, consumer_seq=consumer_seq, count=count, now=now)
            self.redelivery.sent(range(first, last + 1), now)
        else:
            seqs = [rows.seq(i) for i in indices]
            for k, seq in enumerate(seqs):
                live.deliver(seq, seq, consumer_seq=consumer_seq + k)
                self.progress.sent_run(seq, consumer_seq=consumer_seq + k, count=1, now=now)
            self.redelivery.sent(seqs, now)
        if self._initial:
            del self._initial[: bisect_right(self._initial, last)]
            self.next_seq = last + 1
            self._leave_initial()
        else:
            self.next_seq = last + 1
            self._num_pending.delivered(count)

    def upcoming(self, now: int) -> tuple[int, int]:
        """Consumer sequence of the next delivery, and num_pending after it if it is a first one."""
        return self.live.consumer_seq + 1, max(self.count(now) - 1, 0)

    def send_again(self, to: bytes, rows: Rows, index: int, now: int) -> Deliver:
        """Record a redelivery and return the effect that sends it."""
        live, seq = self.live, rows.seq(index)
        deliveries = live.deliveries(seq) + 1
        consumer_seq = live.consumer_seq + 1
        live.deliver_again(seq, deliveries=deliveries)
        live.delivered_up_to(stream_seq=live.stream_seq, consumer_seq=consumer_seq)
        self.progress.sent_again(seq, deliveries=deliveries, now=now)
        self.redelivery.sent_again(seq, now, deliveries=deliveries)
        pending = self.count(now)
        return Deliver(to, rows, [index], consumer_seq, [deliveries], pending, self.headers_only)

    def message_size(self, rows: Rows, index: int, now: int, *, ahead: int = 0) -> int:
        """Bytes of ack subject, headers and payload of a message sent after `ahead` others."""
        live, seq = self.live, rows.seq(index)
        again = seq in live.pending
        facts = (
            live.deliveries(seq) + again,
            seq,
            live.consumer_seq + 1 + ahead,
            rows.time(index),
            max(self.count(now) - (0 if again else 1 + ahead), 0),
        )
        size = len(self._ack_prefix) + len(b".%d.%d.%d.%d.%d" % facts)
        if self.headers_only:
            return size + len(headers_only_block(rows, index))
        return size + rows.row_size(index)

    def removed(self, seqs: Sequence[int]) -> list[int]:
        """Messages were removed from the stream. Returns those that were pending."""
        were_pending = self.live.remove(seqs)
        self.redelivery.forget(were_pending)
        self._num_pending.removed(max(seqs), self.next_seq)
        if self._initial:
            take_out(self._initial, seqs)
            self._leave_initial()
        return were_pending

    def removed_range(self, first: int, last: int) -> list[int]:
        """Like `removed`, for every sequence from `first` to `last`."""
        were_pending = self.live.remove_range(first, last)
        self.redelivery.forget(were_pending)
        self._num_pending.removed(last, self.next_seq)
        if self._initial:
            low, high = bisect_left(self._initial, first), bisect_right(self._initial, last)
            del self._initial[low:high]
            self._leave_initial()
        if first <= self.next_seq <= last:
            self.next_seq = last + 1
        return were_pending

    def pass_over(self, last: int) -> None:
        """Nothing up to `last` is left to deliver."""
        self.live.pass_over(last)
        self.next_seq = max(self.next_seq, last + 1)

    def _take_initial(self, limit_rows: int) -> RowGroups:
        groups: RowGroups = []
        removed: list[int] = []
        for seq in self._initial[:limit_rows]:
            located = self.store.rows(seq)
            if located is None:
                removed.append(seq)
                continue
            rows, index = located
            if groups and groups[-1][0] is rows:
                groups[-1][1].append(index)
            else:
                groups.append((rows, [index]))
        if removed:
            self.removed(removed)
        return groups

    def _leave_initial(self) -> None:
        """When the initial messages are delivered, continue above the last sequence that the
        stream had at creation."""
        if not self._initial:
            self.next_seq = max(self.next_seq, self._consumer.resume_after + 1)


def _ack_wait_ns(config: ConsumerConfig) -> int:
    """With ack policy flow_control the ack wait never runs out: lost messages are delivered again
    when a subscriber binds."""
    return NEVER_NS if config.ack_policy is AckPolicy.FLOW_CONTROL else config.ack_wait
