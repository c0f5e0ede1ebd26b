"""Delivery at the leader of a stream: deliver messages, process acks, run timers.

Owns: the delivery engines of the stream's consumers, their timers, and sending their effects.
May not touch: replicated state; changes are proposed as commands.
A Leadership is created when this node has applied all entries of earlier terms, and closed when
leadership ends.
Spec: NATS JetStream consumers (push, pull, acks, flow control)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from broker.cluster.consumer_requests.forwarding import ForwardedAcks, ForwardedRequest
from broker.cluster.replica.delivery_deadlines import DeliveryDeadlines
from broker.cluster.replica.message_sender import MessageSender, SendFrame
from broker.cluster.replica.push_interest import PushInterest
from broker.jetstream.api.subjects import parse_api_subject
from broker.jetstream.commands.stream_commands import AnyCommand
from broker.jetstream.config import AckPolicy
from broker.jetstream.config.consumer_update import is_internal
from broker.jetstream.consumer.ack_subjects import parse_ack_subject
from broker.jetstream.consumer.consumer import Consumer, ConsumerNumbers
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
from broker.jetstream.delivery.pull_queue import CONSUMER_DELETED, LEADERSHIP_CHANGE
from broker.jetstream.delivery.replication import Urgency, flush
from broker.server.routing.fair_queue import TURN_S
from broker.store.block.codec import BlockDamaged
from broker.subjects import Steps
from raft.clock.boot_clock import boot_ns

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.jetstream.stream.stream import Stream
    from broker.server.routing.router import Router

ACK_PREFIX = b"$JS.ACK."
FLOW_PREFIX = b"$JS.FC."
NO_RESPONDERS = b"NATS/1.0 503\r\nNats-Subject: %s\r\n\r\n"
RECORD_AFTER_S = 0.005  # deliveries and acks that nobody waits for share an entry for this long
EXPIRY_CHECK_MIN_NS = 250_000_000  # the age timer runs at most this often


class LedStream(Protocol):
    """The replica, as far as its leadership uses it."""

    @property
    def name(self) -> str: ...
    @property
    def account(self) -> Account: ...
    @property
    def stream(self) -> Stream: ...
    def stamp(self) -> int: ...
    def propose_all(self, proposed: Sequence[AnyCommand], confirms: Sequence[bytes]) -> None: ...


class LeaderAdvisories(Protocol):
    """Events of a led stream (observe/advisories.py)."""

    def of_consumer(self, account: Account, stream: str, consumer: str, action: str) -> None: ...
    def of_pause(self, account: Account, stream: str, consumer: Consumer) -> None: ...
    def of_batch(self, account: Account, stream: str, batch: bytes, reason: str) -> None: ...
    def of_delivery(
        self, account: Account, stream: str, consumer: Consumer, facts: list[Advisory]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class DeliveryServices:
    """What delivery uses of its node, the same for all streams."""

    router: Router
    send_frame: SendFrame
    # Continues in another turn of the loop; fair between accounts, then between streams.
    later: Callable[[Callable[[], None], Hashable, Hashable], None]
    interest: PushInterest
    advisories: LeaderAdvisories
    domain: bytes
    now_ns: Callable[[], int]  # the time of the cluster
    steady_ns: Callable[[], int] = boot_ns  # measures waits; see LeaderTime


class Leadership:
    def __init__(self, replica: LedStream, services: DeliveryServices) -> None:
        self.stream = replica.stream
        self.engines: dict[str, Delivery] = {}
        self.closed = False
        self._replica = replica
        self._account = replica.account
        self._services = services
        self._time = LeaderTime(steady_ns=services.steady_ns, cluster_ns=services.now_ns)
        self._sender = MessageSender(
            services.router, services.send_frame, replica.account, replica.name
        )
        self._listening: dict[Delivery, None] = {}  # engines whose clients wait for messages
        self._dirty: dict[Delivery, None] = {}
        self._unrecorded: dict[Delivery, None] = {}  # engines with changes to replicate
        self._recording: asyncio.TimerHandle | None = None  # proposes those changes
        self._deadlines: DeliveryDeadlines[Delivery] = DeliveryDeadlines()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0  # when it fires
        self._expiry: asyncio.TimerHandle | None = None
        self._expiry_at = 0  # when it fires
        self._watched: dict[bytes, str] = {}  # deliver subject -> consumer
        self.stream.leader_effects.start()
        try:
            for consumer in self.stream.consumers.values():
                self._begin(consumer)
            self._arm_expiry()
        except BlockDamaged:
            self.close()  # stop what was started
            raise

    def close(self, line: str = LEADERSHIP_CHANGE) -> None:
        """Leadership ended, or the stream was deleted (CONSUMER_DELETED): tell waiting clients."""
        self.closed = True
        self.stream.leader_effects.stop()
        for engine in self.engines.values():
            self._carry_out(engine, engine.close(line))
            if line == CONSUMER_DELETED:
                self._advise_consumer(engine.consumer.name, "delete")
        self.engines.clear()
        for handle in (self._timer, self._expiry, self._recording):
            if handle is not None:
                handle.cancel()
        for subject in self._watched:
            self._services.interest.unwatch(self._account.name, subject, self)
        self._watched.clear()

    # -- consumers are created and deleted ------------------------------------------------------

    def _consumer_set_changed(self, names: Sequence[str]) -> None:
        """Create and close the engines of these consumers, so that there is exactly one for each
        that the stream has. An empty name stands for all."""
        consumers = self.stream.consumers
        changed = (*self.engines, *consumers) if "" in names else names
        for name in dict.fromkeys(changed):
            engine, consumer = self.engines.get(name), consumers.get(name)
            if engine is not None and engine.consumer is not consumer:
                self._carry_out(engine, engine.close(CONSUMER_DELETED))
                self._forget(name, engine)
                if not is_internal(engine.consumer.config):
                    self._advise_consumer(name, "delete")
            if consumer is not None and name not in self.engines:
                engine = self._begin(consumer)
                if not is_internal(consumer.config):
                    self._advise_consumer(name, "create")
                if engine.consumer.config.pause_until:
                    self._services.advisories.of_pause(
                        self._account, self._replica.name, engine.consumer
                    )

    def _advise_consumer(self, name: str, action: str) -> None:
        self._services.advisories.of_consumer(self._account, self._replica.name, name, action)

    def _begin(self, consumer: Consumer) -> Delivery:
        engine = Delivery(
            consumer, now=self._time.now(), time=self._time, has_interest=self._has_interest
        )
        self.engines[consumer.name] = engine
        if consumer.config.is_push:
            self._watch(engine)
        self._wake(engine)
        return engine

    def consumer_changed(self, name: str) -> None:
        """The consumer was updated, paused, resumed or reset."""
        if (engine := self.engines.get(name)) is not None:
            if engine.consumer.config.is_push:
                self._watch(engine)
            self._wake(engine)

    def counting(self, name: str) -> Steps[int | None]:
        """As Delivery.counting; None if the consumer is not served."""
        engine = self.engines.get(name)
        return None if engine is None else (yield from engine.counting(self._time.now()))

    def push_bound(self, name: str) -> bool:
        return (engine := self.engines.get(name)) is not None and engine.push_bound

    def numbers(self, name: str) -> ConsumerNumbers | None:
        """Of a consumer that is served here."""
        engine = self.engines.get(name)
        return None if engine is None else engine.numbers(self._time.now())

    def unpin(self, name: str) -> None:
        if (engine := self.engines.get(name)) is not None:
            engine.unpin()
            self._wake(engine)

    def _forget(self, name: str, engine: Delivery) -> None:
        del self.engines[name]
        self._listening.pop(engine, None)
        self._dirty.pop(engine, None)
        self._unrecorded.pop(engine, None)
        self._deadlines.forget(engine)
        for subject, owner in list(self._watched.items()):
            if owner == name:
                del self._watched[subject]
                self._services.interest.unwatch(self._account.name, subject, self)

    # -- requests of consumers' clients ---------------------------------------------------------

    def take_request(self, request: ForwardedRequest) -> None:
        """A pull, an ack or a flow control answer. One that cannot be parsed is dropped."""
        _, subject, reply, headers, payload = request
        if subject.startswith(ACK_PREFIX):
            engine = self._ack(subject, reply, payload)
        elif subject.startswith(FLOW_PREFIX):
            tokens = subject.split(b".")
            engine = self.engines.get(tokens[-2].decode(errors="replace"))
            if engine is not None:
                engine.flow_control_reply(subject, headers)
        else:
            parsed = parse_api_subject(subject, domain=self._services.domain)
            engine = self.engines.get(parsed.consumer) if parsed is not None else None
            if engine is None:
                self._sender.status(reply, b"", NO_RESPONDERS % subject)
            else:
                engine.pull(payload, reply, self._time.now())
                self._listening[engine] = None
        if engine is not None:
            self._wake(engine)

    def _ack(self, subject: bytes, reply: bytes, payload: bytes) -> Delivery | None:
        """Process an ack. Returns the engine that took it."""
        if (parsed := parse_ack_subject(subject)) is None:
            return None
        name = parsed[1].decode(errors="replace")
        if (engine := self.engines.get(name)) is None and name in self.stream.consumers:
            return None  # not served yet, or no longer
        if engine is None or engine.consumer.config.ack_policy is AckPolicy.NONE:
            if reply:  # this consumer takes no acks
                self._sender.status(reply, b"", NO_RESPONDERS % subject)
            return None
        engine.ack(parsed, payload, reply, self._time.now())
        return engine

    def take_acks(self, acks: ForwardedAcks) -> None:
        """Plain acks of one consumer, in bulk."""
        _, name, stream_seqs, consumer_seqs = acks
        if (engine := self.engines.get(name.decode(errors="replace"))) is not None:
            engine.ack_many(stream_seqs, consumer_seqs)
            if engine.acks_can_wait:
                self._unrecorded[engine] = None
                self._record_soon()
            else:
                self._wake(engine)

    # -- applied entries ------------------------------------------------------------------------

    def applied(self, *, stored: bool, consumers: list[str]) -> None:
        """Entries were applied: new messages, or changed consumers, or neither."""
        if self.closed:
            return
        if consumers:
            self._consumer_set_changed(consumers)
            for name in consumers:
                self.consumer_changed(name)
        if stored:
            self._messages_stored()
            if self.stream.leader_effects.republished:
                self._republish()
            if self.stream.leader_effects.abandoned:
                self._advise_abandoned()

    def _republish(self) -> None:
        """Republish stored messages, at most once: no copy is kept for a retry."""
        router, account = self._services.router, self._account
        for message in self.stream.leader_effects.take_republished():
            router.publish(account, message.subject, b"", message.headers, message.data)

    def _advise_abandoned(self) -> None:
        for batch, reason in self.stream.leader_effects.take_abandoned():
            self._services.advisories.of_batch(self._account, self._replica.name, batch, reason)

    def reconfigured(self) -> None:
        """A new max_age may take effect before the next message is stored."""
        self._arm_expiry()

    def _messages_stored(self) -> None:
        for engine in list(self._listening) if self._listening else ():
            if engine.has_receiver():
                self._wake(engine)
            else:
                del self._listening[engine]
        if not self.stream.may_expire:
            return
        config = self.stream.config
        batches = config.allow_atomic or config.allow_batched
        timed = config.allow_msg_ttl or batches or config.allow_msg_schedules
        if self._expiry is None or timed:
            self._arm_expiry()

    # -- interest in deliver subjects -----------------------------------------------------------

    def interest_changed(self, subject: bytes) -> None:
        engine = self.engines.get(self._watched.get(subject, ""))
        if engine is not None:
            self._bind(engine)
            self._wake(engine)

    def _watch(self, engine: Delivery) -> None:
        """Follow the subscriptions to a push consumer's deliver subject."""
        subject = engine.consumer.config.deliver_subject.encode()
        interest, account = self._services.interest, self._account.name
        for old, owner in list(self._watched.items()):
            if owner == engine.consumer.name and old != subject:
                del self._watched[old]
                interest.unwatch(account, old, self)
        self._watched[subject] = engine.consumer.name
        interest.watch(account, subject, self)
        self._bind(engine)

    def _bind(self, engine: Delivery) -> None:
        config = engine.consumer.config
        bound = self._services.interest.is_bound(
            self._account, config.deliver_subject.encode(), config.deliver_group.encode()
        )
        engine.set_interest(bound=bound, now=self._time.now())
        if bound:
            self._listening[engine] = None

    def _has_interest(self, subject: bytes) -> bool:
        return bool(self._account.subs.match(subject))

    # -- effects --------------------------------------------------------------------------------

    def _wake(self, engine: Delivery) -> None:
        self._dirty[engine] = None
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def propose_changes(self) -> None:
        """Propose pending changes now, without waiting for RECORD_AFTER_S."""
        if self._dirty:
            self._run()
        if self._unrecorded and not self.closed:
            self._record(self._time.now())

    def _run(self) -> None:
        """One turn: pump the engines that have work, then propose their replicated changes."""
        if self.closed:
            return
        now = self._time.now()
        try:
            pumped = self._pump(now)
        except BlockDamaged:
            return  # the damage was reported: this leadership ends
        self._scheduled = bool(self._dirty)
        if self._scheduled:
            self._services.later(self._run, self._account.name, self)
        urgency = Urgency.NOTHING
        for engine in pumped:
            found = engine.urgency(now)
            if found:
                self._unrecorded[engine] = None
                urgency = max(urgency, found)
            self._deadlines.update(engine)
        if urgency is Urgency.NOW:
            self._record(now)
        elif urgency:
            self._record_soon()
        self._arm()

    def _record_soon(self) -> None:
        if self._recording is None:
            loop = asyncio.get_running_loop()
            self._recording = loop.call_later(RECORD_AFTER_S, self._record_in_time)

    def _record_in_time(self) -> None:
        self._recording = None
        if not self.closed:
            self._record(self._time.now())

    def _record(self, now: int) -> None:
        """Propose the changes that the engines have to replicate."""
        if self._recording is not None:
            self._recording.cancel()
            self._recording = None
        engines, self._unrecorded = self._unrecorded, {}
        proposal = flush(engines, now, stamp_ns=self._time.to_cluster(now))
        if proposal is not None:
            self._replica.propose_all(proposal.commands, proposal.confirms)

    def _pump(self, now: int) -> list[Delivery]:
        """Pump engines for a time slice; the others come first in the next turn. Returns the
        engines that were pumped."""
        deadline = time.perf_counter() + TURN_S
        dirty, self._dirty = self._dirty, {}
        pumped: list[Delivery] = []
        for engine in dirty:
            began = time.perf_counter()
            self._carry_out(engine, engine.pump(now))
            engine.took(time.perf_counter() - began)
            pumped.append(engine)
            if engine.more_work:
                self._dirty[engine] = None
            if time.perf_counter() > deadline:
                rest = dict.fromkeys(islice(dirty, len(pumped), None))
                self._dirty = rest | self._dirty
                break
        return pumped

    def _carry_out(self, engine: Delivery, effects: Sequence[Effect]) -> None:
        facts: list[Advisory] = []
        alone = len(effects) == 1
        for effect in effects:
            match effect:
                case Deliver():
                    self._sender.deliver(effect, engine.consumer.name, alone=alone)
                case StatusMessage():
                    self._sender.status(effect.to, effect.reply, effect.header)
                case Confirm():
                    self._sender.status(effect.reply, b"", b"")
                case Propose():
                    self._replica.propose_all([effect.command], [])
                case Advisory():
                    facts.append(effect)
        if facts:
            self._services.advisories.of_delivery(
                self._account, self._replica.name, engine.consumer, facts
            )

    def confirm(self, replies: Iterable[bytes]) -> None:
        """Answer double acks."""
        for reply in replies:
            self._sender.status(reply, b"", b"")

    # -- timers ---------------------------------------------------------------------------------

    def _arm(self) -> None:
        at = self._deadlines.earliest()
        if self._timer is not None:
            if at is not None and self._timer_at <= at:
                return  # reset when it fires: most deadlines move before they are reached
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            delay = max(at - self._time.now(), 0) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay, self._due)

    def _due(self) -> None:
        self._timer = None
        for engine in self._deadlines.due(self._time.now()):
            self._wake(engine)
        if not self._scheduled:
            self._arm()

    def _arm_expiry(self) -> None:
        if self.closed:
            return
        now = self._services.now_ns()
        try:
            at = self.stream.next_expiry(now)
        except BlockDamaged:
            return  # as in _run
        if at is None:
            return
        at = max(at, now + EXPIRY_CHECK_MIN_NS)
        if self._expiry is not None:
            if self._expiry_at <= at:
                return
            self._expiry.cancel()
        self._expiry_at = at
        self._expiry = asyncio.get_running_loop().call_later((at - now) / 1e9, self._expire)

    def time_stepped(self) -> None:
        """Cluster time has jumped: whatever expires at a date may be due."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._arm_expiry()

    def _expire(self) -> None:
        self._expiry = None
        if self.closed:
            return
        try:
            due = self.stream.due_commands(self._replica.stamp())
        except BlockDamaged:
            return  # as in _run
        self._replica.propose_all(due, [])
        self._arm_expiry()
