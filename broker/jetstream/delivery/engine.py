"""The delivery engine of one consumer, on the leader of its stream.

Owns: the parts of delivery and the order in which they run. Everything here is volatile: live ack
state, redelivery queue, waiting pull requests, heartbeats, flow control. It is rebuilt from the
replicated Consumer when this node becomes leader; nothing here is ever read from disk.
May not touch: sockets, Raft, clocks. `now` is an argument in nanoseconds, of leader_time.py: no
correction of the cluster's time changes how long anything waits here.
Spec: JetStream delivery, push and pull consumers, acknowledgements, redelivery.

How to use it, only on the leader and only after all entries of earlier terms have been applied:
    pull / ack / flow_control_reply / set_interest  when a client sends something
    pump(now)   -> effects; call it again soon while more_work is set
    urgency(now) -> whether there is something to replicate, and how soon
    replication.flush(...) -> commands to propose
    next_deadline() -> when to pump even if nothing arrives

The parts: cursor.py (position, num_pending, redelivery), dispatch.py (what is sent next),
receivers.py (pull requests or the push subject), ack_collector.py (acknowledgements)."""

from __future__ import annotations

from collections.abc import Sequence

from broker.jetstream.commands.consumer_commands import ConsumerAcks, ConsumerProgress
from broker.jetstream.commands.stream_commands import DeleteConsumer
from broker.jetstream.config import AckPolicy, ConsumerConfig, Retention
from broker.jetstream.consumer.ack_subjects import (
    PLAIN_ACKS,
    AckKind,
    AckSubject,
    flow_control_ack,
    next_request,
)
from broker.jetstream.consumer.consumer import Consumer, ConsumerNumbers
from broker.jetstream.delivery.ack_collector import AckCollector
from broker.jetstream.delivery.cursor import Cursor
from broker.jetstream.delivery.dispatch import Dispatch, PumpLimits
from broker.jetstream.delivery.effects import Advisory, Effect, Propose, StatusMessage
from broker.jetstream.delivery.flow_control import ReplayPace
from broker.jetstream.delivery.inactivity import Inactivity
from broker.jetstream.delivery.leader_time import LeaderTime
from broker.jetstream.delivery.pull_queue import (
    CONSUMER_IS_PUSH,
    EXCEEDED_MAX_WAITING,
    Interest,
    PullRequest,
    status,
)
from broker.jetstream.delivery.receivers import PullReceivers, PushReceiver, Receivers
from broker.jetstream.delivery.replication import Urgency
from broker.subjects import Steps


class Delivery:
    """`has_interest(reply)`: whether the reply subject of a pull request has a subscriber. For push
    consumers the caller reports that with `set_interest`."""

    def __init__(
        self,
        consumer: Consumer,
        *,
        now: int,
        time: LeaderTime,
        has_interest: Interest,
        limits: PumpLimits = PumpLimits(),  # noqa: B008 - frozen
    ) -> None:
        self.consumer = consumer
        self.more_work = False
        self._time = time
        self._paused = bool(consumer.paused_until_ns(time.to_cluster(now)))
        self._cursor = Cursor(consumer, now)
        self._effects: list[Effect] = []
        self._acks = AckCollector(consumer, self._cursor, self._effects, time)
        self._limits = limits
        self._closed = False
        self._ending = False  # its deletion was proposed: no client is served any more
        self._acks_came = False  # acks were received since the last pump
        # Held requests: no_wait ones while pending messages are counted; all while _ending.
        self._early: list[PullRequest] = []
        self._pumped_at = now
        self._last_delivered_ns = consumer.last_delivered_ns
        replay = ReplayPace(consumer.config, self._cursor.store)
        self._dispatch = Dispatch(self._cursor, replay, self._effects, limits)
        self._pull: PullReceivers | None = None
        self._push: PushReceiver | None = None
        if consumer.config.is_push:
            self._push = self._push_receiver()
        else:
            self._pull = PullReceivers(
                consumer.config,
                self._cursor,
                self._effects,
                has_interest,
                pin_seed=f"{consumer.stream.config.name} {consumer.name} {consumer.incarnation}",
            )
        self._idle = self._inactivity(now)
        consumer.watcher = self

    # Input

    def has_receiver(self) -> bool:
        """Whether anyone waits for new messages."""
        if self._pull is not None:
            return self._pull.waiting.size > 0 or bool(self._early)
        return self._push is not None and self._push.bound

    def pull(self, body: bytes, reply: bytes, now: int) -> None:
        """A pull request. The next pump returns the status if it is refused."""
        if not reply or self._closed:
            return
        if self._pull is None:
            self._effects.append(StatusMessage(reply, status(CONSUMER_IS_PUSH)))
            return
        self._idle.used(now)
        request = self._pull.parse(body, reply, now)
        if request is None:
            return
        if self._ending:
            self._take_early(request)
            return
        if request.no_wait:
            self._acks.settle(now)  # acks decide whether there is a message for this request
            if self._early or not self._cursor.counted(now, exact=True):
                self._take_early(request)
                return
        self._pull.add(request, now)

    def _take_early(self, request: PullRequest) -> None:
        """Hold the request until it is known whether there is a message for it (pending messages
        are being counted), or whether it will be served at all (the deletion of the consumer is not
        decided yet)."""
        assert self._pull is not None
        if len(self._early) < self._pull.waiting.capacity:
            self._early.append(request)
        else:
            self._effects.append(StatusMessage(request.reply, status(EXCEEDED_MAX_WAITING)))

    def ack(self, parsed: AckSubject, payload: bytes, reply: bytes, now: int) -> None:
        """An acknowledgement. Plain ones are collected and applied together, once per turn."""
        stream_seq, consumer_seq = parsed[3], parsed[4]
        cursor = self._cursor
        if stream_seq > cursor.live.stream_seq or not cursor.tracked:
            return
        self._acks_came = True
        if payload in PLAIN_ACKS:
            self._acks.take(stream_seq, consumer_seq, reply)
            return
        kind = self._acks.take_special(stream_seq, consumer_seq, payload, reply, now)
        if kind is AckKind.NEXT:
            self.pull(next_request(payload), reply, now)

    def ack_many(self, stream_seqs: list[int], consumer_seqs: list[int]) -> None:
        """Plain acks without replies, in the order they came."""
        cursor = self._cursor
        if not cursor.tracked:
            return
        self._acks_came = True
        delivered = cursor.live.stream_seq
        if max(stream_seqs) > delivered:  # acks of messages that were never sent
            pairs = zip(stream_seqs, consumer_seqs, strict=True)
            sent = [pair for pair in pairs if pair[0] <= delivered]
            stream_seqs = [pair[0] for pair in sent]
            consumer_seqs = [pair[1] for pair in sent]
        self._acks.take_many(stream_seqs, consumer_seqs)

    @property
    def acks_can_wait(self) -> bool:
        """After `ack_many`: whether these acks need no pump, because no request waits for messages
        and acks remove nothing. The next pump applies them before anything else, or they are
        applied when they are replicated."""
        pull = self._pull
        return (
            pull is not None
            and not pull.waiting.size
            and not self._early
            and not self._ending
            and self._acks.can_wait
            and self.consumer.stream.config.retention is Retention.LIMITS
        )

    def flow_control_reply(self, subject: bytes, headers: bytes = b"") -> None:
        """A client answered a flow control request; its headers may carry an ack."""
        if self._push is None or self._push.flow is None:
            return
        self._push.flow.answered(subject)
        if self.consumer.config.ack_policy is AckPolicy.FLOW_CONTROL:
            reached = flow_control_ack(headers)
            if reached is not None and reached[0] <= self._cursor.live.stream_seq:
                self._acks_came = True
                self._acks.take(*reached, b"")

    def set_interest(self, *, bound: bool, now: int) -> None:
        """Push: whether the exact deliver subject (and group) has a subscriber. The caller repeats
        this after every change of the configuration."""
        if self._push is not None and bound != self._push.bound:
            self._push.bind(bound=bound, now=now)
            self._idle.bound(bound=bound, now=now)
            if bound and self.consumer.config.ack_policy is AckPolicy.FLOW_CONTROL:
                self._cursor.redelivery.enqueue(sorted(self._cursor.live.pending))

    def close(self, line: str) -> list[Effect]:
        """Stop: `line` is CONSUMER_DELETED, LEADERSHIP_CHANGE or SERVER_SHUTDOWN."""
        self._closed = True
        if self.consumer.watcher is self:
            self.consumer.watcher = None
        if self._pull is None:
            return []
        early = [StatusMessage(request.reply, status(line)) for request in self._early]
        return [*self._pull.waiting.close_all(line), *early]

    # Output

    def took(self, used_s: float) -> None:
        """How long the last pump took, with what it delivered: the next one is bounded by that."""
        self._dispatch.took(used_s)

    def pump(self, now: int) -> list[Effect]:
        """Handle what is due and deliver messages, within the limits."""
        self.more_work = False
        if self._closed:
            return []
        self._pumped_at = now
        if self._acks_came:
            self._acks_came = False
            self._idle.used(now)
        self._acks.settle(now)
        self._acks.redeliver(self._cursor.redelivery.expired(now))
        if self._pull is not None:
            self._pull.due(now)
        self._check_pause(now)
        if not self._ending:
            self._serve(now)
        effects = self._effects[:]
        self._effects.clear()
        return effects

    def _serve(self, now: int) -> None:
        if not self._is_counted(now):
            self.more_work = True
        elif not self._paused:
            self._deliver(now)
        if self._push is not None:
            self._push.due(now)
        self._check_idle(now)

    def next_deadline(self) -> int | None:
        """When to call pump and flush even if nothing arrives."""
        if self._closed:
            return None
        if self._ending:
            return self._cursor.progress.deadline()
        pause_end = self._time.from_cluster(self.consumer.config.pause_until or 0)
        candidates = (
            self._cursor.redelivery.next_deadline(),
            self._cursor.progress.deadline(),
            self._receivers.next_deadline(self._pumped_at),
            self._idle_deadline(),
            pause_end if pause_end > self._pumped_at else None,
            self._dispatch.ready_at or None,
        )
        earliest: int | None = None
        for at in candidates:
            if at is not None and (earliest is None or at < earliest):
                earliest = at
        return earliest

    def urgency(self, now: int) -> Urgency:
        """After a pump: whether there is something to replicate, and how soon."""
        removing = self.consumer.stream.config.retention is not Retention.LIMITS
        return max(self._acks.urgency(removing=removing), self._cursor.progress.urgency(now))

    def take_progress(self, now: int) -> ConsumerProgress | None:
        """Deliveries to replicate; see replication.flush."""
        live, consumer = self._cursor.live, self.consumer
        return self._cursor.progress.take(
            consumer.name,
            now,
            epoch=consumer.epoch,
            consumer_seq=live.consumer_seq,
            stream_seq=live.stream_seq,
        )

    def take_acks(self, now: int) -> tuple[ConsumerAcks, list[bytes]] | None:
        """Acknowledgements to replicate, and the replies to confirm afterwards; see
        replication.flush."""
        return self._acks.take_all(now)

    def counting(self, now: int) -> Steps[int]:
        """Count what `numbers` needs, in steps. Returns num_pending plus what was delivered since:
        for a new consumer, num_pending before its first delivery."""
        while not self._cursor.counted(now, exact=True):
            yield
        return self._cursor.count(now) + self._cursor.live.consumer_seq

    @property
    def push_bound(self) -> bool:
        """Whether the deliver subject of a push consumer has a subscriber."""
        return self._push is not None and self._push.bound

    def numbers(self, now: int) -> ConsumerNumbers:
        """The numbers of consumer info, as of now; num_pending since `counting` if messages were
        removed after that."""
        self._acks.settle(now)
        if self._pull is not None:
            self._pull.sweep(now)
        pin = self._pull.pin if self._pull is not None else None
        live, consumer = self._cursor.live, self.consumer
        return ConsumerNumbers(
            consumer_seq=live.consumer_seq,
            stream_seq=live.stream_seq,
            # Once recorded, show the time of the record, which every replica has.
            last_delivered_ns=max(self._last_delivered_ns, consumer.last_delivered_ns),
            floor_consumer_seq=live.floor_consumer_seq,
            floor_stream_seq=live.floor_stream_seq,
            last_acked_ns=max(self._acks.last_acked_ns, consumer.last_acked_ns),
            num_ack_pending=len(live.pending),
            num_redelivered=0 if consumer.config.max_deliver == 1 else len(live.redelivered),
            num_waiting=len(self._pull.waiting) if self._pull is not None else 0,
            num_pending=self._cursor.count(now),
            push_bound=self.push_bound,
            paused_until_ns=consumer.paused_until_ns(self._time.to_cluster(now)),
            pinned_id=pin.id if pin is not None else "",
            pinned_ns=self._time.to_cluster(pin.since_ns) if pin is not None and pin.id else 0,
        )

    def unpin(self) -> None:
        """Requested by a client. The next request that is served gets pinned."""
        if self._pull is not None and self._pull.pin is not None:
            self._pull.pin.unpin("admin")

    # Changes that log entries made to the consumer (ConsumerWatcher)

    def config_changed(self, old: ConsumerConfig) -> None:
        config, now = self.consumer.config, self._pumped_at
        self._acks.settle(now)
        self._cursor.reconfigure(config)
        self._idle = self._inactivity(now)
        self._acks.reconfigure()
        if self._pull is not None:
            self._pull.reconfigure(config)
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
            self._cursor.redelivery.enqueue(sorted(self._cursor.live.pending))

    def was_reset(self) -> None:
        self._last_delivered_ns = 0
        self._cursor.rebuild(self._pumped_at)
        self._acks.forget()

    def messages_removed(self, seqs: Sequence[int]) -> None:
        self._acks.settle(self._pumped_at)
        self._acks.removed(self._cursor.removed(seqs))
        self._acks.align_floor()

    def range_removed(self, first: int, last: int) -> None:
        self._acks.settle(self._pumped_at)
        self._acks.removed(self._cursor.removed_range(first, last))
        self._acks.align_floor()

    def passed_over(self, last: int) -> None:
        self._cursor.pass_over(last)
        self._acks.align_floor()

    # Steps of a pump

    def _is_counted(self, now: int) -> bool:
        """Whether num_pending is known, so that deliveries can continue: every message carries it.
        Counting takes many pumps if the stream is large."""
        if not self._early and not self.has_receiver():
            return True
        if not self._cursor.counted(now, exact=bool(self._early)):
            return False
        early, self._early = self._early, []
        for request in early:
            assert self._pull is not None
            self._pull.add(request, now)
        return True

    def _deliver(self, now: int) -> None:
        if self._dispatch.run(self._receivers, now):
            self._last_delivered_ns = self._time.to_cluster(now)
            self._idle.used(now)
        self.more_work = self._dispatch.more_work
        if self._pull is not None:
            self._pull.end_no_wait(now)

    def _check_pause(self, now: int) -> None:
        """Advise when a pause has run out. Its start and an early end are commands, which are
        advised where they are applied."""
        until = self.consumer.config.pause_until or 0
        if not until and not self._paused:
            return
        paused = bool(self.consumer.paused_until_ns(self._time.to_cluster(now)))
        if self._paused and not paused and until:
            self._effects.append(Advisory("resumed"))
        self._paused = paused

    def _check_idle(self, now: int) -> None:
        """Propose the deletion of an idle consumer. A proposed entry cannot be taken back: it may
        be committed once there is a majority again, so no client may be served in the meantime. If
        the deletion is refused or lost, Leadership starts another engine, which serves again."""
        deadline = self._idle_deadline()
        if deadline is None or now < deadline:
            return
        if self._pull is not None:
            self._pull.sweep(now)
            if self._pull.turns:
                self._idle.used(now)
                return
        consumer = self.consumer
        command = DeleteConsumer(self._time.to_cluster(now), consumer.name, consumer.incarnation)
        self._effects.append(Propose(command))
        self._ending = True

    def _idle_deadline(self) -> int | None:
        waits = self._pull is not None and bool(self._cursor.live.pending)
        return self._idle.deadline(extended_ns=self.consumer.config.ack_wait if waits else 0)

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

    def _inactivity(self, now: int) -> Inactivity:
        config = self.consumer.config
        return Inactivity(
            self.consumer.name,
            threshold_ns=config.inactive_threshold,
            push=config.is_push,
            now=now,
        )
