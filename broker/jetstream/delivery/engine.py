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

from collections.abc import Sequence
from typing import assert_never

from broker.jetstream.commands.consumer_commands import ConsumerAcks, ConsumerProgress
from broker.jetstream.commands.stream_commands import DeleteConsumer
from broker.jetstream.config import AckPolicy, ConsumerConfig, PriorityPolicy
from broker.jetstream.consumer.ack_subjects import (
    PLAIN_ACKS,
    AckKind,
    AckSubject,
    classify,
    flow_control_ack,
    nak_delay_ns,
    next_request,
    term_reason,
)
from broker.jetstream.consumer.consumer import Consumer, ConsumerNumbers
from broker.jetstream.delivery.ack_collector import AckCollector, Sampler
from broker.jetstream.delivery.cursor import Cursor
from broker.jetstream.delivery.dispatch import Dispatch, PumpLimits
from broker.jetstream.delivery.effects import Advisory, Confirm, Effect, Propose, StatusMessage
from broker.jetstream.delivery.inactivity import RETRY_NS, Inactivity
from broker.jetstream.delivery.pinning import PIN_MISMATCH, Pin
from broker.jetstream.delivery.pull_queue import (
    CONSUMER_IS_PUSH,
    EXCEEDED_MAX_WAITING,
    NO_MESSAGES,
    REQUESTS_PENDING,
    Interest,
    PullRequest,
    parse_pull,
    status,
)
from broker.jetstream.delivery.receivers import PullReceivers, PushReceiver, Receivers


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
        self._paused = bool(consumer.paused_until_ns(now))
        self._cursor = Cursor(consumer, now)
        self._effects: list[Effect] = []
        self._acks = AckCollector(consumer, self._cursor)
        self._acks.sampler = self._sampler()
        self._has_interest = has_interest
        self._limits = limits
        self._closed = False
        self._acks_came = False  # since the last pump
        self._pumped_at = now
        self._last_delivered_ns = consumer.last_delivered_ns
        self._dispatch = Dispatch(consumer, self._cursor, self._effects, limits)
        self._pull: PullReceivers | None = None
        self._push: PushReceiver | None = None
        if consumer.config.is_push:
            self._push = self._push_receiver()
        else:
            self._pull = PullReceivers(
                consumer.config, self._cursor, self._effects, has_interest, pin=self._new_pin()
            )
        self._idle = self._inactivity(now)
        consumer.watcher = self

    # What arrives

    def wake(self) -> bool:
        """New messages are stored. Is there anybody to give them to?"""
        if self._pull is not None:
            return len(self._pull.waiting) > 0
        return self._push is not None and self._push.bound

    def pull(self, body: bytes, reply: bytes, now: int) -> None:
        """A request for messages. Refusals come out of the next pump."""
        if not reply or self._closed:
            return
        if self._pull is None:
            self._refuse(reply, CONSUMER_IS_PUSH)
            return
        self._idle.used(now)
        request = parse_pull(body, reply, now, self.consumer.config)
        if isinstance(request, bytes):
            self._effects.append(StatusMessage(reply, request))
            return
        if self._pull.pin is not None and self._pull.pin.refuses(request, now):
            self._effects.append(StatusMessage(reply, PIN_MISMATCH))
            return
        if request.no_wait and not self._worth_waiting(self._pull, request, now):
            return
        waiting = self._pull.waiting
        if waiting.full:
            self._pull.sweep(now)
        if not waiting.full:
            waiting.add(request)
        elif not request.heartbeat_ns:  # a client that counts heartbeats finds out by itself
            self._refuse(reply, EXCEEDED_MAX_WAITING)

    def ack(self, parsed: AckSubject, payload: bytes, reply: bytes, now: int) -> None:
        """An acknowledgement. Plain ones cost an append; the rest happens once per turn."""
        stream_seq, consumer_seq = parsed[3], parsed[4]
        cursor = self._cursor
        if stream_seq > cursor.live.stream_seq or not cursor.tracked:
            return
        self._acks_came = True
        if payload in PLAIN_ACKS:
            self._acks.take(stream_seq, consumer_seq, reply)
        else:
            self._special_ack(stream_seq, consumer_seq, payload, reply, now)

    def ack_many(self, stream_seqs: list[int], consumer_seqs: list[int]) -> None:
        """Plain acks without replies, in the order they came."""
        cursor = self._cursor
        if not cursor.tracked:
            return
        self._acks_came = True
        delivered = cursor.live.stream_seq
        if max(stream_seqs) > delivered:  # acks of what was never sent
            pairs = zip(stream_seqs, consumer_seqs, strict=True)
            sent = [pair for pair in pairs if pair[0] <= delivered]
            stream_seqs = [pair[0] for pair in sent]
            consumer_seqs = [pair[1] for pair in sent]
        self._acks.take_many(stream_seqs, consumer_seqs)

    def flow_control_reply(self, subject: bytes, headers: bytes = b"") -> None:
        """A client answered a flow control request; perhaps with how far it has come."""
        if self._push is None or self._push.flow is None:
            return
        self._push.flow.answered(subject)
        if self.consumer.config.ack_policy is AckPolicy.FLOW_CONTROL:
            reached = flow_control_ack(headers)
            if reached is not None and reached[0] <= self._cursor.live.stream_seq:
                self._acks_came = True
                self._acks.take(*reached, b"")

    def set_interest(self, *, bound: bool, now: int) -> None:
        """Push: is there a subscriber on the exact deliver subject (and group)? To be told again
        after every change of the configuration."""
        if self._push is not None and bound != self._push.bound:
            self._push.bind(bound=bound, now=now)
            self._idle.bound(bound=bound, now=now)
            if bound and self.consumer.config.ack_policy is AckPolicy.FLOW_CONTROL:
                self._cursor.redelivery.again(sorted(self._cursor.live.pending))

    def close(self, line: str) -> list[Effect]:
        """The engine ends: `line` is CONSUMER_DELETED, LEADERSHIP_CHANGE or SERVER_SHUTDOWN."""
        self._closed = True
        if self.consumer.watcher is self:
            self.consumer.watcher = None
        return [*self._pull.waiting.close_all(line)] if self._pull is not None else []

    # What goes out

    def pump(self, now: int) -> list[Effect]:
        """Do what is due and deliver what may go, within the limits."""
        self.more_work = False
        if self._closed:
            return []
        self._pumped_at = now
        if self._acks_came:
            self._acks_came = False
            self._idle.used(now)
        self._acks.settle(now)
        self._requeue(self._cursor.redelivery.expired(now))
        if self._pull is not None:
            self._pull.due(now)
        self._check_pause(now)
        if not self._paused:
            self._deliver(now)
        if self._push is not None:
            self._push.due(now)
        self._check_idle(now)
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def next_deadline(self) -> int | None:
        """When pump and flush must be called although nothing arrives."""
        if self._closed:
            return None
        pause_end = self.consumer.config.pause_until or 0
        candidates = (
            self._cursor.redelivery.next_deadline(),
            self._cursor.progress.deadline(),
            self._receivers.next_deadline(self._pumped_at),
            self._idle_deadline(),
            pause_end if pause_end > self._pumped_at else None,
            self._dispatch.ready_at or None,
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
        if self._pull is not None:
            self._pull.sweep(now)
        pin = self._pull.pin if self._pull is not None else None
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
            num_waiting=len(self._pull.waiting) if self._pull is not None else 0,
            num_pending=self._cursor.count(now, exact=True),
            push_bound=self._push is not None and self._push.bound,
            paused_until_ns=consumer.paused_until_ns(now),
            pinned_id=pin.id if pin is not None else "",
            pinned_ns=pin.since_ns if pin is not None else 0,
        )

    def unpin(self) -> None:
        """By command of a client; the next request served is pinned."""
        if self._pull is not None and self._pull.pin is not None:
            self._pull.pin.unpin("admin")

    # What the log did to the consumer (ConsumerWatcher)

    def config_changed(self, old: ConsumerConfig) -> None:
        config, now = self.consumer.config, self._pumped_at
        self._acks.settle(now)
        self._cursor.reconfigure(config)
        self._idle = self._inactivity(now)
        self._acks.sampler = self._sampler()
        if self._pull is not None and old.priority_policy is not config.priority_policy:
            self._pull.pin = self._new_pin()
        if self._pull is not None and self._pull.pin is not None:
            self._pull.pin.timeout_ns = config.priority_timeout
        if self._push is None:
            return
        moved = (old.deliver_subject, old.deliver_group) != (
            config.deliver_subject,
            config.deliver_group,
        )
        bound = self._push.bound and not moved
        self._push = self._push_receiver()
        self._push.bind(bound=bound, now=now)
        self._idle.bound(bound=bound, now=now)
        if old.deliver_subject != config.deliver_subject:
            self._cursor.redelivery.again(sorted(self._cursor.live.pending))

    def was_reset(self) -> None:
        self._last_delivered_ns = 0
        self._cursor.rebuild(self._pumped_at)
        self._acks.forget()

    def messages_removed(self, seqs: Sequence[int]) -> None:
        self._acks.settle(self._pumped_at)
        self._terminated(self._cursor.removed(seqs))
        self._acks.align_floor()

    def range_removed(self, first: int, last: int) -> None:
        self._acks.settle(self._pumped_at)
        self._terminated(self._cursor.removed_range(first, last))
        self._acks.align_floor()

    def passed_over(self, last: int) -> None:
        self._cursor.pass_over(last)
        self._acks.align_floor()

    # Delivering

    def _deliver(self, now: int) -> None:
        if self._dispatch.run(self._receivers, now):
            self._last_delivered_ns = now
            self._idle.used(now)
        self.more_work = self._dispatch.more_work
        if self._pull is not None:
            self._end_no_wait(self._pull, now)

    def _available(self, now: int) -> int:
        return self._cursor.count(now, exact=True) + self._cursor.redelivery.queued

    # Acknowledgements that are more than an ack

    def _special_ack(
        self, stream_seq: int, consumer_seq: int, payload: bytes, reply: bytes, now: int
    ) -> None:
        kind = classify(payload)
        self._acks.settle(now)
        live = self._cursor.live
        match kind:
            case AckKind.ACK | AckKind.TERM:
                term = kind is AckKind.TERM
                if term and stream_seq in live.pending:
                    self._advise("terminated", stream_seq, consumer_seq, term_reason(payload))
                self._acks.take(stream_seq, consumer_seq, reply, measured=not term)
                return
            case AckKind.NEXT:
                self._acks.take(stream_seq, consumer_seq, b"")
                self.pull(next_request(payload), reply, now)
                return
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

    def _nak(self, seq: int, delay_ns: int | None, now: int) -> None:
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

    def _worth_waiting(self, pull: PullReceivers, request: PullRequest, now: int) -> bool:
        """A no_wait request is refused when there is nothing, or nothing left over, for it."""
        self._acks.settle(now)
        available = self._available(now)
        if available == 0:
            if request.expires_at:
                return True
            self._refuse(request.reply, NO_MESSAGES)
            return False
        if pull.turns:
            pull.sweep(now)
        if pull.wanted() > available:
            self._refuse(request.reply, REQUESTS_PENDING)
            return False
        return True

    def _end_no_wait(self, pull: PullReceivers, now: int) -> None:
        """At the end of the stream, requests that do not wait are over."""
        waiting = pull.waiting
        if any(request.no_wait for request in waiting) and not self._available(now):
            self._effects += waiting.at_end_of_stream()

    def _refuse(self, reply: bytes, line: str) -> None:
        self._effects.append(StatusMessage(reply, status(line)))

    def _idle_deadline(self) -> int | None:
        waits = self._pull is not None and bool(self._cursor.live.pending)
        return self._idle.deadline(extended_ns=self.consumer.config.ack_wait if waits else 0)

    def _check_idle(self, now: int) -> None:
        deadline = self._idle_deadline()
        if deadline is None or now < deadline:
            return
        if self._pull is not None:
            self._pull.sweep(now)
            if self._pull.turns:
                self._idle.used(now)
                return
        consumer = self.consumer
        command = DeleteConsumer(now, consumer.name, consumer.incarnation)
        self._effects.append(Propose(command))
        self._idle.postpone(now + RETRY_NS)

    def _terminated(self, seqs: list[int]) -> None:
        for seq in seqs:
            self._advise("terminated", seq, reason="Unacknowledged message was deleted")

    def _advise(self, kind: str, seq: int, consumer_seq: int = 0, reason: str = "") -> None:
        """`consumer_seq` is the delivery that was answered, if one was."""
        if self.advisories:
            live = self._cursor.live
            consumer_seq = consumer_seq or live.pending.get(seq, 0)
            facts = (kind, seq, consumer_seq, live.deliveries(seq), reason)
            self._effects.append(Advisory(*facts))

    def _check_pause(self, now: int) -> None:
        """Tell when a pause has run out; its beginning and an early end are commands."""
        paused = bool(self.consumer.paused_until_ns(now))
        until = self.consumer.config.pause_until or 0
        if self._paused and not paused and until and self.advisories:
            self._effects.append(Advisory("resumed"))
        self._paused = paused

    @property
    def _receivers(self) -> Receivers:
        receivers = self._pull or self._push
        assert receivers is not None
        return receivers

    def _push_receiver(self) -> PushReceiver:
        consumer = self.consumer
        return PushReceiver(
            consumer.config,
            self._cursor,
            self._effects,
            flow_prefix=f"$JS.FC.{consumer.stream.config.name}.{consumer.name}.",
            rate_burst_bytes=self._limits.rate_burst_bytes,
        )

    def _new_pin(self) -> Pin | None:
        consumer, config = self.consumer, self.consumer.config
        if config.priority_policy is not PriorityPolicy.PINNED_CLIENT:
            return None
        return Pin(
            f"{consumer.stream.config.name} {consumer.name} {consumer.incarnation}",
            group=config.priority_groups[0],
            timeout_ns=config.priority_timeout,
            effects=self._effects,
        )

    def _sampler(self) -> Sampler | None:
        config = self.consumer.config
        if not config.sample_percent or config.ack_policy is not AckPolicy.EXPLICIT:
            return None
        return Sampler(config.sample_percent, self._cursor, self._effects)

    def _inactivity(self, now: int) -> Inactivity:
        config = self.consumer.config
        return Inactivity(
            self.consumer.name,
            threshold_ns=config.inactive_threshold,
            push=config.is_push,
            now=now,
        )
