"""The leader's delivery engine of one consumer.

Owns: who gets which message next, and everything volatile about it: live ack state, redelivery
queue, waiting pull requests, heartbeats, flow control. It is rebuilt from the replicated Consumer
when this node becomes leader; nothing here is ever read from disk.
May not touch: sockets, Raft, clocks. `now` is an argument in nanoseconds: wall time that does not
step back (read once, then advanced by the monotonic clock), since it is also stamped on commands.
Spec: JetStream delivery, push and pull specifics, acknowledgements, redelivery.

Use, on the leader only, after everything of earlier terms has been applied:
    pull / ack / flow_control_reply / set_interest  as things arrive
    pump(now)   -> effects; call again soon while more_work
    flush(...)  -> commands to propose, once per turn of the loop
    next_deadline() -> when to pump although nothing arrives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from broker.jetstream.ack import (
    PLAIN_ACKS,
    AckKind,
    AckSubject,
    classify,
    nak_delay_ns,
    next_request,
    term_reason,
)
from broker.jetstream.ack_collector import AckCollector
from broker.jetstream.commands import DeleteConsumer
from broker.jetstream.config import ConsumerConfig
from broker.jetstream.consumer import Consumer, ConsumerNumbers
from broker.jetstream.consumer_commands import (
    Acks,
    ConsumerAcks,
    ConsumerProgress,
    Progress,
)
from broker.jetstream.cursor import Cursor, RowGroups
from broker.jetstream.effects import Advisory, Confirm, Effect, Proposal, Propose, Status
from broker.jetstream.flow_control import FlowControl, RateLimit
from broker.jetstream.headers_only import headers_only_block
from broker.jetstream.inactivity import RETRY_NS, Inactivity
from broker.jetstream.message_source import Rows
from broker.jetstream.pull import (
    CONSUMER_IS_PUSH,
    EXCEEDED_MAX_WAITING,
    NO_MESSAGES,
    REQUESTS_PENDING,
    SIZE_EXCEEDS_MAX_BYTES,
    Interest,
    PullRequest,
    WaitingQueue,
    idle_heartbeat,
    parse_pull,
    status,
)
from broker.jetstream.replay import Replay

FLOW_CONTROL_REQUEST = status("100 FlowControl Request")
UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class PumpLimits:
    """How much one pump may send before it must give way to others."""

    messages: int = 1000
    size: int = 1 << 20
    # With this many messages at hand, requests take turns in runs rather than one by one.
    runs_from: int = 256
    rate_burst_bytes: int = 1 << 20


class Delivery:
    """See the module text. `has_interest` tells whether anybody listens on a pull's reply subject;
    for push consumers `set_interest` does. Set `advisories` when somebody wants them."""

    def __init__(
        self,
        consumer: Consumer,
        *,
        now: int,
        has_interest: Interest,
        limits: PumpLimits = PumpLimits(),  # noqa: B008 - frozen
    ) -> None:
        self.consumer = consumer
        self.more_work = False
        self.advisories = False
        self.waiting = WaitingQueue(consumer.config.max_waiting)
        self._cursor = Cursor(consumer, now)
        self._acks = AckCollector(consumer, self._cursor)
        self._has_interest = has_interest
        self._listening: set[bytes] = set()  # replies found to have interest in this pump
        self._limits = limits
        self._effects: list[Effect] = []
        self._bound = False
        self._closed = False
        self._pumped_at = now
        self._last_delivered_ns = consumer.last_delivered_ns
        self._replay = Replay(consumer)
        self._idle: Inactivity
        self._configure(now)
        consumer.watcher = self

    # What arrives

    def wake(self) -> bool:
        """New messages are stored. Is there anybody to give them to?"""
        return self._bound if self._push is not None else len(self.waiting) > 0

    def pull(self, body: bytes, reply: bytes, now: int) -> None:
        """A request for messages. Refusals come out of the next pump."""
        if not reply or self._closed:
            return
        if self._push is not None:
            self._refuse(reply, CONSUMER_IS_PUSH)
            return
        self._idle.used(now)
        request = parse_pull(body, reply, now, self.consumer.config)
        if isinstance(request, bytes):
            self._effects.append(Status(reply, request))
            return
        if request.no_wait and not self._worth_waiting(request, now):
            return
        if self.waiting.full:
            self._sweep(now)
        if not self.waiting.full:
            self.waiting.add(request)
        elif not request.heartbeat_ns:  # a client that counts heartbeats finds out by itself
            self._refuse(reply, EXCEEDED_MAX_WAITING)

    def ack(self, parsed: AckSubject, payload: bytes, reply: bytes, now: int) -> None:
        """An acknowledgement. Plain ones cost an append; the rest happens once per turn."""
        stream_seq, consumer_seq = parsed[3], parsed[4]
        cursor = self._cursor
        if stream_seq > cursor.live.stream_seq or not cursor.tracked:
            return
        self._idle.used(now)
        if payload in PLAIN_ACKS:
            self._acks.take(stream_seq, consumer_seq, reply)
        else:
            self._special_ack(stream_seq, consumer_seq, payload, reply, now)

    def flow_control_reply(self, subject: bytes) -> None:
        """A client answered a flow control request."""
        if self._flow is not None:
            self._flow.answered(subject)

    def set_interest(self, *, bound: bool, now: int) -> None:
        """Push: is there a subscriber on the exact deliver subject (and group)? To be told again
        after every change of the configuration."""
        if bound == self._bound:
            return
        self._bound = bound
        self._idle.bound(bound=bound, now=now)
        self._heartbeat_at = now + self._heartbeat_ns if bound and self._heartbeat_ns else 0
        if self._flow is not None:
            self._flow.restart()

    def close(self, line: str) -> list[Effect]:
        """The engine ends: `line` is CONSUMER_DELETED, LEADERSHIP_CHANGE or SERVER_SHUTDOWN."""
        self._closed = True
        if self.consumer.watcher is self:
            self.consumer.watcher = None
        return [*self.waiting.close_all(line)]

    # What goes out

    def pump(self, now: int) -> list[Effect]:
        """Do what is due and deliver what may go, within the limits."""
        self.more_work = False
        if self._closed:
            return []
        self._pumped_at = now
        self._listening.clear()
        self._acks.settle(now)
        self._requeue(self._cursor.redelivery.expired(now))
        self._effects += self.waiting.due(now, self._heartbeat)
        if not self.consumer.paused_until_ns(now):
            self._deliver(now)
        self._push_heartbeat(now)
        self._check_idle(now)
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> int | None:
        """When pump and flush must be called although nothing arrives."""
        if self._closed:
            return None
        pause_end = self.consumer.config.pause_until or 0
        rate_at = self._rate.ready_at() if self._rate is not None else 0
        candidates = (
            self._cursor.redelivery.next_deadline(),
            self._cursor.progress.deadline(),
            self.waiting.next_deadline(),
            self._heartbeat_at or None,
            self._idle_deadline(),
            pause_end if pause_end > self._pumped_at else None,
            self._replay.ready_at or None,
            rate_at if self._bound and rate_at > self._pumped_at else None,
        )
        return min((at for at in candidates if at is not None), default=None)

    def take_progress(self, now: int) -> ConsumerProgress | None:
        """Deliveries to tell the replicas; see flush."""
        live, consumer = self._cursor.live, self.consumer
        return self._cursor.progress.take(
            consumer.name,
            now,
            epoch=consumer.epoch,
            consumer_seq=live.consumer_seq,
            stream_seq=live.stream_seq,
        )

    def take_acks(self, now: int) -> tuple[ConsumerAcks, list[bytes]] | None:
        """Acknowledgements to tell the replicas, and whom to confirm afterwards; see flush."""
        return self._acks.take_all(now)

    def numbers(self, now: int) -> ConsumerNumbers:
        """What info shows, as of this moment."""
        self._acks.settle(now)
        self.waiting.prune(self._has_interest)
        live, consumer = self._cursor.live, self.consumer
        return ConsumerNumbers(
            consumer_seq=live.consumer_seq,
            stream_seq=live.stream_seq,
            last_delivered_ns=self._last_delivered_ns,
            floor_consumer_seq=live.floor_consumer_seq,
            floor_stream_seq=live.floor_stream_seq,
            last_acked_ns=self._acks.last_acked_ns,
            num_ack_pending=len(live.pending),
            num_redelivered=0 if consumer.config.max_deliver == 1 else len(live.redelivered),
            num_waiting=len(self.waiting),
            num_pending=self._cursor.count(now, exact=True),
            push_bound=self._bound,
            paused_until_ns=consumer.paused_until_ns(now),
        )

    # What the log did to the consumer (ConsumerWatcher)

    def config_changed(self, old: ConsumerConfig) -> None:
        self._acks.settle(self._pumped_at)
        self._cursor.reconfigure(self.consumer.config)
        self._configure(self._pumped_at)
        if old.deliver_subject != self.consumer.config.deliver_subject:
            self._bound = False
            self._cursor.redelivery.again(sorted(self._cursor.live.pending))

    def was_reset(self) -> None:
        self._cursor.rebuild(self._pumped_at)
        self._acks.forget()

    def messages_removed(self, seqs: Sequence[int]) -> None:
        self._acks.settle(self._pumped_at)
        self._terminated(self._cursor.removed(seqs))

    def range_removed(self, first: int, last: int) -> None:
        self._acks.settle(self._pumped_at)
        self._terminated(self._cursor.removed_range(first, last))

    # Delivering

    def _deliver(self, now: int) -> None:
        budget = self._limits.messages
        sent = self._deliver_again(now, budget)
        if not self._cursor.redelivery.queued:
            sent += self._deliver_new(now, budget - sent)
        if sent:
            self._last_delivered_ns = now
            self._idle.used(now)
        if any(request.no_wait for request in self.waiting) and not self._available(now):
            self._effects += self.waiting.at_end_of_stream()

    def _deliver_again(self, now: int, budget: int) -> int:
        """The redelivery queue, oldest entry first."""
        cursor, sent = self._cursor, 0
        while sent < budget:
            seq = cursor.redelivery.peek()
            if not seq:
                return sent
            located = self.consumer.stream.store.rows(seq)
            if located is None:
                cursor.removed((seq,))
                continue
            receiver = self._next_receiver(now)
            if receiver is None:
                return sent
            rows, index = located
            if self._fit(receiver, rows, [index], now):
                cursor.redelivery.pop()
                self._effects.append(cursor.send_again(receiver.reply, rows, index, now))
                self._served(receiver, 1, now)
                sent += 1
        self.more_work = True
        return sent

    def _deliver_new(self, now: int, budget: int) -> int:
        """New messages, as far as max_ack_pending and the receivers allow."""
        if budget <= 0 or self._next_receiver(now) is None:
            return 0
        limit = min(budget, self._room(), self._wanted())
        if limit <= 0:
            return 0
        groups = self._replay.take(self._cursor, limit, self._limits.size, now)
        rows_taken = sum(len(indices) for _, indices in groups)
        sent = self._hand_out(groups, rows_taken, now)
        self.more_work = (
            0 < sent == rows_taken
            and self._room() > 0
            and not self._replay.ready_at
            and self._cursor.count(now) > 0
            and self._next_receiver(now) is not None
        )
        return sent

    def _hand_out(self, groups: RowGroups, total: int, now: int) -> int:
        """Requests take turns, one message each; in runs when there is plenty, which saves most
        of the work and is as fair over the whole."""
        turns = len(self.waiting) if self._push is None else 1
        run = total
        if turns > 1:
            run = max(total // (8 * turns), 1) if total >= self._limits.runs_from else 1
        sent = 0
        for rows, indices in groups:
            at = 0
            while at < len(indices):
                receiver = self._next_receiver(now)
                if receiver is None:
                    return sent
                part = indices[at : at + min(run, max(receiver.batch, 1))]
                count = self._fit(receiver, rows, part, now)
                if count == 0:
                    continue
                if count < len(part):
                    part = part[:count]
                self._effects.append(self._cursor.send_first(receiver.reply, rows, part, now))
                self._served(receiver, count, now)
                at += count
                sent += count
        return sent

    def _next_receiver(self, now: int) -> PullRequest | None:
        if self._push is None:
            return self.waiting.head(self._listened, self._eligible)
        if not self._bound or (self._flow is not None and self._flow.blocked):
            return None
        if self._rate is not None and self._rate.ready_at() > now:
            return None
        return self._push

    def _fit(self, receiver: PullRequest, rows: Rows, indices: list[int], now: int) -> int:
        """How many of these may go to the receiver. Their bytes are charged to it. A pull request
        that cannot take the first one is closed."""
        if self._push is None:
            return self._fit_request(receiver, rows, indices)
        if self._flow is None and self._rate is None:
            return len(indices)
        for k, index in enumerate(indices):
            size = self._size(rows, index) + len(receiver.reply) - len(rows.subject(index))
            if self._flow is not None:
                self._flow.sent(size)
            if self._rate is not None:
                self._rate.sent(size, now)
            if self._next_receiver(now) is None:
                return k + 1
        return len(indices)

    def _fit_request(self, request: PullRequest, rows: Rows, indices: list[int]) -> int:
        if not request.max_bytes:
            return len(indices)
        for k, index in enumerate(indices):
            if not request.charge(self._size(rows, index)):
                if k == 0:
                    self._effects.append(request.rest(SIZE_EXCEEDS_MAX_BYTES))
                    self.waiting.close(request)
                return k
            if not request.max_bytes:
                return k + 1
        return len(indices)

    def _served(self, receiver: PullRequest, count: int, now: int) -> None:
        if self._push is None:
            ended = self.waiting.served(receiver, count, now)
            if ended is not None:
                self._effects.append(ended)
            return
        if self._heartbeat_ns:
            self._heartbeat_at = now + self._heartbeat_ns
        if self._flow is not None:
            reply = self._flow.ask()
            if reply:
                self._effects.append(Status(receiver.reply, FLOW_CONTROL_REQUEST, reply))

    def _size(self, rows: Rows, index: int) -> int:
        """Subject, ack subject, headers and payload of a message about to be sent."""
        live = self._cursor.live
        seq = rows.seq(index)
        numbers = b".%d.%d.%d.%d.%d" % (
            live.deliveries(seq),
            seq,
            live.consumer_seq + 1,
            rows.time(index),
            self._cursor.count(self._pumped_at),
        )
        size = len(rows.subject(index)) + len(self._ack_prefix) + len(numbers)
        if self.consumer.config.headers_only:
            return size + len(headers_only_block(rows, index))
        return size + len(rows.headers(index)) + len(rows.data(index))

    def _room(self) -> int:
        most = self.consumer.config.max_ack_pending
        if most <= 0 or not self._cursor.tracked:
            return UNLIMITED
        return most - len(self._cursor.live.pending)

    def _wanted(self) -> int:
        return UNLIMITED if self._push is not None else self.waiting.wanted()

    def _available(self, now: int) -> int:
        return self._cursor.count(now, exact=True) + self._cursor.redelivery.queued

    def _listened(self, reply: bytes) -> bool:
        if reply in self._listening:
            return True
        if not self._has_interest(reply):
            return False
        self._listening.add(reply)
        return True

    def _eligible(self, request: PullRequest) -> bool:
        """Overflow: only when enough is pending, or enough of it unacked."""
        if not request.min_pending and not request.min_ack_pending:
            return True
        return 0 < request.min_pending <= self._cursor.count(
            self._pumped_at
        ) or 0 < request.min_ack_pending <= len(self._cursor.live.pending)

    # Acknowledgements that are more than an ack

    def _special_ack(
        self, stream_seq: int, consumer_seq: int, payload: bytes, reply: bytes, now: int
    ) -> None:
        kind = classify(payload)
        self._acks.settle(now)
        live = self._cursor.live
        match kind:
            case AckKind.ACK | AckKind.TERM:
                if kind is AckKind.TERM and stream_seq in live.pending:
                    self._advise("terminated", stream_seq, term_reason(payload))
                self._acks.take(stream_seq, consumer_seq, reply)
                return
            case AckKind.NEXT:
                self._acks.take(stream_seq, consumer_seq, b"")
                self.pull(next_request(payload), reply, now)
                return
            case AckKind.NAK:
                if stream_seq in live.pending:
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

    def _nak(self, seq: int, delay_ns: int | None, now: int) -> None:
        self._advise("nak", seq)
        if delay_ns is not None:
            self._cursor.redelivery.later(seq, now + delay_ns)
        else:
            self._requeue([seq])

    def _requeue(self, seqs: list[int]) -> None:
        """To be delivered again, unless it was delivered max_deliver times."""
        if not seqs:
            return
        live, most = self._cursor.live, self.consumer.config.max_deliver
        if most > 0:
            spent = [seq for seq in seqs if live.deliveries(seq) >= most]
            if spent:
                for seq in spent:
                    self._advise("max_deliver", seq)
                self._acks.give_up(spent)
                seqs = [seq for seq in seqs if seq in live.pending]
        self._cursor.redelivery.again(seqs)

    # Requests, heartbeats, inactivity

    def _worth_waiting(self, request: PullRequest, now: int) -> bool:
        """A no_wait request is refused when there is nothing, or nothing left over, for it."""
        self._acks.settle(now)
        available = self._available(now)
        if available == 0:
            if request.expires_at:
                return True
            self._refuse(request.reply, NO_MESSAGES)
            return False
        if len(self.waiting):
            self._sweep(now)
        if self.waiting.wanted() > available:
            self._refuse(request.reply, REQUESTS_PENDING)
            return False
        return True

    def _sweep(self, now: int) -> None:
        self._effects += self.waiting.due(now, self._heartbeat)
        self.waiting.prune(self._has_interest)

    def _refuse(self, reply: bytes, line: str) -> None:
        self._effects.append(Status(reply, status(line)))

    def _heartbeat(self) -> bytes:
        stalled = self._flow.awaiting if self._flow is not None else b""
        return idle_heartbeat(
            consumer_seq=self._cursor.live.consumer_seq,
            stream_seq=self._cursor.passed,
            stalled=stalled,
        )

    def _push_heartbeat(self, now: int) -> None:
        if self._push is not None and self._bound and 0 < self._heartbeat_at <= now:
            self._effects.append(Status(self._push.reply, self._heartbeat()))
            self._heartbeat_at = now + self._heartbeat_ns

    def _idle_deadline(self) -> int | None:
        waits = self._push is None and bool(self._cursor.live.pending)
        return self._idle.deadline(extended_ns=self.consumer.config.ack_wait if waits else 0)

    def _check_idle(self, now: int) -> None:
        deadline = self._idle_deadline()
        if deadline is None or now < deadline:
            return
        self.waiting.prune(self._has_interest)
        if len(self.waiting):
            self._idle.used(now)
            return
        consumer = self.consumer
        command = DeleteConsumer(now, consumer.name, consumer.incarnation)
        self._effects.append(Propose(command))
        self._idle.postpone(now + RETRY_NS)

    def _terminated(self, seqs: list[int]) -> None:
        for seq in seqs:
            self._advise("terminated", seq, "Unacknowledged message was deleted")

    def _advise(self, kind: str, seq: int, reason: str = "") -> None:
        if self.advisories:
            live = self._cursor.live
            consumer_seq = live.pending.get(seq, 0)
            facts = (kind, seq, consumer_seq, live.deliveries(seq), reason)
            self._effects.append(Advisory(*facts))

    def _configure(self, now: int) -> None:
        """Everything that follows from the configuration."""
        consumer, config = self.consumer, self.consumer.config
        stream = consumer.stream.config.name
        self._ack_prefix = f"$JS.ACK.{stream}.{consumer.name}".encode()
        self._push: PullRequest | None = None
        self._flow: FlowControl | None = None
        self._rate: RateLimit | None = None
        if config.is_push:
            self._push = PullRequest(config.deliver_subject.encode(), batch=UNLIMITED)
            if config.flow_control:
                self._flow = FlowControl(stream, consumer.name)
            if config.rate_limit_bps:
                burst = self._limits.rate_burst_bytes
                self._rate = RateLimit(bits_per_s=config.rate_limit_bps, burst_bytes=burst)
        self._heartbeat_ns = config.idle_heartbeat if config.is_push else 0
        self._heartbeat_at = now + self._heartbeat_ns if self._bound and self._heartbeat_ns else 0
        self._idle = Inactivity(
            consumer.name, threshold_ns=config.inactive_threshold, push=config.is_push, now=now
        )
        if config.is_push:
            self._idle.bound(bound=self._bound, now=now)


def flush(deliveries: Iterable[Delivery], now: int) -> Proposal | None:
    """What a stream's engines have to tell the replicas: at most one Progress and one Acks.

    Call it only when the commands can be proposed at once, and propose them in order: what it
    returns is not kept. An engine whose commands got lost must be closed and rebuilt.
    """
    progress: list[ConsumerProgress] = []
    acks: list[ConsumerAcks] = []
    proposal = Proposal()
    for delivery in deliveries:
        made = delivery.take_progress(now)
        if made is not None:
            progress.append(made)
        taken = delivery.take_acks(now)
        if taken is not None:
            acks.append(taken[0])
            proposal.confirms += taken[1]
    if progress:
        proposal.commands.append(Progress(now, progress))
    if acks:
        proposal.commands.append(Acks(now, acks))
    return proposal if proposal.commands else None
