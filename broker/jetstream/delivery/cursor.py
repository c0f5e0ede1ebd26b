"""Where the leader's delivery of one consumer stands.

Owns: the live ack state, which runs ahead of the replicated one, the next message to look at, the
redelivery queue, the count of what is left, the record for the next Progress.
May not touch: receivers, time beyond the `now` it is given.
Spec: JetStream delivery order, last_per_subject, num_pending, removal of unacked messages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from broker.jetstream.config import AckPolicy, ConsumerConfig
from broker.jetstream.consumer.ack_floor import AckState
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.delivery.effects import Deliver
from broker.jetstream.delivery.headers_only import headers_only_block
from broker.jetstream.delivery.num_pending import Backlog
from broker.jetstream.delivery.progress_record import ProgressRecord
from broker.jetstream.delivery.redelivery import Redelivery
from broker.store.block.block import Rows

NEVER_NS = 1 << 61
RowGroups = list[tuple[Rows, list[int]]]


class Cursor:
    """In order: each delivery it is told of, or makes, is going to happen."""

    def __init__(self, consumer: Consumer, now: int) -> None:
        config = consumer.config
        self._consumer = consumer
        self._store = consumer.stream.store
        self.tracked = config.ack_policy is not AckPolicy.NONE
        self.live = AckState()
        self.redelivery = Redelivery(ack_wait_ns=_ack_wait_ns(config), backoff=config.backoff)
        self.progress = ProgressRecord(lazy=not self.tracked)
        self.backlog = Backlog(self._store, consumer.filters)
        self.next_seq = 1
        self._initial: list[int] = []
        self.headers_only = config.headers_only
        self._ack_prefix = f"$JS.ACK.{consumer.stream.config.name}.{consumer.name}".encode()
        self.rebuild(now)

    def rebuild(self, now: int) -> None:
        """From the replicated state. Everything pending is due an ack wait from now."""
        consumer = self._consumer
        self.live = consumer.state.copy()
        self._initial = list(consumer.initial)
        self.next_seq = self.live.stream_seq + 1
        self._leave_initial()
        self.progress.clear()
        self.backlog.recount()
        self.redelivery.clear()
        for seq in self.live.pending:
            self.redelivery.sent_again(seq, now, deliveries=self.live.deliveries(seq))

    def reconfigure(self, config: ConsumerConfig) -> None:
        self.redelivery.reconfigure(ack_wait_ns=_ack_wait_ns(config), backoff=config.backoff)
        self.headers_only = config.headers_only
        self.backlog = Backlog(self._store, self._consumer.filters)

    @property
    def passed(self) -> int:
        """The last stream sequence that needs no further look."""
        return self.next_seq - 1

    def count(self, now: int, *, exact: bool = False) -> int:
        """num_pending."""
        start = self._consumer.resume_after + 1 if self._initial else self.next_seq
        return len(self._initial) + self.backlog.count(start, now=now, exact=exact)

    def take(self, *, limit_rows: int, limit_bytes: int) -> RowGroups:
        """The next messages for first delivery. Reading moves nothing but past what is known not
        to match; a later send_first does."""
        if self._initial:
            groups = self._take_initial(limit_rows)
            if groups or self._initial:
                return groups
        store, filters = self._store, self._consumer.filters
        last_seq = store.last_seq
        if self.next_seq > last_seq:
            return []
        groups = store.take(filters, self.next_seq, limit_rows, limit_bytes)
        if not groups:
            self.next_seq = last_seq + 1
        return groups

    def first_deliveries(self, rows: Rows, indices: list[int], now: int) -> None:
        """These rows, the next ones `take` gave, have been sent as Deliver effects built with
        `upcoming`. One call for a whole run: requests that take turns share it."""
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
            self.backlog.delivered(count)

    def upcoming(self, now: int) -> tuple[int, int]:
        """Consumer sequence of the next delivery, and what is pending behind it if it is new."""
        return self.live.consumer_seq + 1, max(self.count(now) - 1, 0)

    def send_again(self, to: bytes, rows: Rows, index: int, now: int) -> Deliver:
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
        """Ack subject, headers and payload of a message that will go out behind `ahead` others."""
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
        """Messages left the stream. Those that were pending come back."""
        gone = self.live.remove(seqs)
        self.redelivery.forget(gone)
        self.backlog.removed(max(seqs), self.next_seq)
        if self._initial:
            for seq in seqs:
                at = bisect_left(self._initial, seq)
                if at < len(self._initial) and self._initial[at] == seq:
                    del self._initial[at]
            self._leave_initial()
        return gone

    def removed_range(self, first: int, last: int) -> list[int]:
        gone = self.live.remove_range(first, last)
        self.redelivery.forget(gone)
        self.backlog.removed(last, self.next_seq)
        if self._initial:
            low, high = bisect_left(self._initial, first), bisect_right(self._initial, last)
            del self._initial[low:high]
            self._leave_initial()
        if first <= self.next_seq <= last:
            self.next_seq = last + 1
        return gone

    def pass_over(self, last: int) -> None:
        """Nothing up to `last` will be delivered."""
        self.live.pass_over(last)
        self.next_seq = max(self.next_seq, last + 1)

    def _take_initial(self, limit_rows: int) -> RowGroups:
        groups: RowGroups = []
        gone: list[int] = []
        for seq in self._initial[:limit_rows]:
            located = self._store.rows(seq)
            if located is None:
                gone.append(seq)
                continue
            rows, index = located
            if groups and groups[-1][0] is rows:
                groups[-1][1].append(index)
            else:
                groups.append((rows, [index]))
        if gone:
            self.removed(gone)
        return groups

    def _leave_initial(self) -> None:
        """After the last of the initial messages, go on behind what there was at creation."""
        if not self._initial:
            self.next_seq = max(self.next_seq, self._consumer.resume_after + 1)


def _ack_wait_ns(config: ConsumerConfig) -> int:
    """Acks by flow control are late for ever, and never missed: what is lost on the way is
    delivered again when the subscriber is back."""
    return NEVER_NS if config.ack_policy is AckPolicy.FLOW_CONTROL else config.ack_wait
