"""What only the leader of a stream does: deliver, take acks, run timers.

Owns: the delivery engines of the stream's consumers, their timers, and the effects' way out.
May not touch: replicated state; whatever must last is proposed as a command.
It is born when this node has applied everything of earlier terms, and dies with its leadership.
Spec: DESIGN section 7; JetStream sheet 5.6-5.9."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count, islice
from time import perf_counter
from typing import TYPE_CHECKING

from broker.cluster.consumer_requests.forwarding import ForwardedAcks, ForwardedRequest
from broker.cluster.replica.message_sender import Sender
from broker.jetstream.api.subjects import parse_api_subject
from broker.jetstream.config import AckPolicy
from broker.jetstream.config.consumer_update import is_internal
from broker.jetstream.consumer.ack_subjects import parse_ack_subject
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.delivery.effects import (
    Advisory,
    Confirm,
    Deliver,
    Effect,
    Propose,
    StatusMessage,
)
from broker.jetstream.delivery.engine import Delivery
from broker.jetstream.delivery.pull_queue import CONSUMER_DELETED, LEADERSHIP_CHANGE
from broker.jetstream.delivery.replication import flush
from broker.server.routing.fair_queue import TURN_S

if TYPE_CHECKING:
    from broker.cluster.replica.replica import Replica

ACK_PREFIX = b"$JS.ACK."
FLOW_PREFIX = b"$JS.FC."
NO_RESPONDERS = b"NATS/1.0 503\r\nNats-Subject: %s\r\n\r\n"
NEVER = 1 << 63
EXPIRY_CHECK_MIN_NS = 250_000_000  # age timers run no faster


class Leadership:
    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.stream = replica.stream
        self.engines: dict[str, Delivery] = {}
        self.sender = Sender(replica.node.server.router, replica.node.mesh, replica.account)
        self._listening: dict[Delivery, None] = {}  # somebody waits there for new messages
        self._dirty: dict[Delivery, None] = {}
        self._timers: list[tuple[int, int, Delivery]] = []
        self._armed: dict[Delivery, int] = {}  # the earliest entry of each engine in _timers
        self._serial = count()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._expiry_at = 0  # when it rings
        self._watched: dict[bytes, str] = {}  # deliver subject -> consumer
        self.closed = False
        self.stream.leader_effects.start()
        self._advising = replica.node.advising
        for consumer in self.stream.consumers.values():
            self._begin(consumer)
        self._arm_expiry()

    def close(self, line: str = LEADERSHIP_CHANGE) -> None:
        """Leadership ended, or the stream (CONSUMER_DELETED): nobody waits here any more."""
        self.closed = True
        self.stream.leader_effects.stop()
        for engine in self.engines.values():
            self._carry_out(engine, engine.close(line))
            if line == CONSUMER_DELETED:
                self._advising.of_consumer(self.replica, engine.consumer.name, "delete")
        self.engines.clear()
        for handle in (self._timer, self._expiry):
            if handle is not None:
                handle.cancel()
        for subject in self._watched:
            self.replica.node.unwatch(self.replica.account.name, subject, self)

    # -- consumers come and go ------------------------------------------------------------------

    def consumers_changed(self) -> None:
        """Engines for the consumers there are, none for those that went."""
        consumers = self.stream.consumers
        for name, engine in list(self.engines.items()):
            if consumers.get(name) is not engine.consumer:
                self._carry_out(engine, engine.close(CONSUMER_DELETED))
                self._forget(name, engine)
                if not is_internal(engine.consumer.config):
                    self._advising.of_consumer(self.replica, name, "delete")
        for name, consumer in consumers.items():
            if name not in self.engines:
                engine = self._begin(consumer)
                if not is_internal(consumer.config):
                    self._advising.of_consumer(self.replica, name, "create")
                if engine.consumer.config.pause_until:
                    self._advising.of_pause(self.replica, engine.consumer)

    def _begin(self, consumer: Consumer) -> Delivery:
        engine = Delivery(consumer, now=self.replica.node.now_ns(), has_interest=self._has_interest)
        self.engines[consumer.name] = engine
        if consumer.config.is_push:
            self._watch(engine)
        self._wake(engine)
        return engine

    def consumer_changed(self, name: str) -> None:
        """Updated, paused, resumed or reset."""
        engine = self.engines.get(name)
        if engine is not None:
            if engine.consumer.config.is_push:
                self._watch(engine)
            self._wake(engine)

    def unpin(self, name: str) -> None:
        engine = self.engines.get(name)
        if engine is not None:
            engine.unpin()
            self._wake(engine)

    def _forget(self, name: str, engine: Delivery) -> None:
        del self.engines[name]
        self._listening.pop(engine, None)
        self._dirty.pop(engine, None)
        self._armed.pop(engine, None)
        for subject, owner in list(self._watched.items()):
            if owner == name:
                del self._watched[subject]
                self.replica.node.unwatch(self.replica.account.name, subject, self)

    # -- what arrives ---------------------------------------------------------------------------

    def errand(self, errand: ForwardedRequest) -> None:
        """A pull, an ack or a flow control answer. What cannot be read is dropped."""
        _, subject, reply, headers, payload = errand
        now = self.replica.node.now_ns()
        if subject.startswith(ACK_PREFIX):
            parsed = parse_ack_subject(subject)
            if parsed is None:
                return
            name = parsed[1].decode(errors="replace")
            engine = self.engines.get(name)
            known = self.replica.stream.consumers.get(name)
            if engine is None and known is not None:
                return  # we do not serve it yet, or any more
            if (
                engine is None or engine.consumer.config.ack_policy is AckPolicy.NONE
            ):  # nobody listens
                if reply:
                    self.sender.status(
                        reply, b"", NO_RESPONDERS % subject
                    )  # nobody listens for acks
                return
            engine.ack(parsed, payload, reply, now)
        elif subject.startswith(FLOW_PREFIX):
            tokens = subject.split(b".")
            engine = self.engines.get(tokens[-2].decode(errors="replace"))
            if engine is None:
                return
            engine.flow_control_reply(subject, headers)
        else:
            request = parse_api_subject(subject, domain=self.replica.node.options.domain.encode())
            engine = self.engines.get(request.consumer) if request is not None else None
            if engine is None:
                self.sender.status(reply, b"", NO_RESPONDERS % subject)
                return
            engine.pull(payload, reply, now)
            self._listening[engine] = None
        self._wake(engine)

    def acks(self, errand: ForwardedAcks) -> None:
        """Plain acks of one consumer, many at once."""
        _, name, stream_seqs, consumer_seqs = errand
        engine = self.engines.get(name.decode(errors="replace"))
        if engine is not None:
            engine.ack_many(stream_seqs, consumer_seqs)
            self._wake(engine)

    def applied(self, *, stored: bool, consumers: list[str]) -> None:
        """Entries were applied: new messages, or changed consumers, or neither."""
        if consumers:
            self.consumers_changed()
            for name in consumers:
                self.consumer_changed(name)
        if stored:
            self._messages_stored()
            if self.stream.leader_effects.republished:
                self._republish()
            if self.stream.leader_effects.abandoned:
                self._tell_given_up()

    def _republish(self) -> None:
        """What was stored goes out again, at most once: it is not kept for anybody."""
        router, account = self.replica.node.server.router, self.replica.account
        for message in self.stream.leader_effects.take_republished():
            router.publish(account, message.subject, b"", message.headers, message.data)

    def _tell_given_up(self) -> None:
        for batch, reason in self.stream.leader_effects.take_abandoned():
            self._advising.of_batch(self.replica, batch, reason)

    def reconfigured(self) -> None:
        """A new max_age may take effect before the next message comes."""
        self._arm_expiry()

    def _messages_stored(self) -> None:
        for engine in list(self._listening):
            if engine.wake():
                self._wake(engine)
            else:
                del self._listening[engine]
        config = self.stream.config
        batches = config.allow_atomic or config.allow_batched
        timed = config.allow_msg_ttl or batches or config.allow_msg_schedules
        if self._expiry is None or timed:
            self._arm_expiry()

    def interest_changed(self, subject: bytes) -> None:
        engine = self.engines.get(self._watched.get(subject, ""))
        if engine is not None:
            self._bind(engine)
            self._wake(engine)

    def _watch(self, engine: Delivery) -> None:
        """Follow who subscribes to a push consumer's deliver subject."""
        subject = engine.consumer.config.deliver_subject.encode()
        for old, owner in list(self._watched.items()):
            if owner == engine.consumer.name and old != subject:
                del self._watched[old]
                self.replica.node.unwatch(self.replica.account.name, old, self)
        self._watched[subject] = engine.consumer.name
        self.replica.node.watch(self.replica.account.name, subject, self)
        self._bind(engine)

    def _bind(self, engine: Delivery) -> None:
        config = engine.consumer.config
        bound = self._is_bound(config.deliver_subject.encode(), config.deliver_group.encode())
        engine.set_interest(bound=bound, now=self.replica.node.now_ns())
        if bound:
            self._listening[engine] = None

    def _is_bound(self, subject: bytes, group: bytes) -> bool:
        """Only subscriptions to exactly this subject, and in exactly this group, count."""
        account = self.replica.account
        if self.replica.node.mesh.interest.exact_at_peer(account, subject, queue=group):
            return True
        match = account.subs.match(subject)
        if not group:
            return any(sub.subject == subject for sub in match.plain)
        return any(
            sub.queue == group and sub.subject == subject for pool in match.queues for sub in pool
        )

    def _has_interest(self, subject: bytes) -> bool:
        return bool(self.replica.account.subs.match(subject))

    # -- what goes out --------------------------------------------------------------------------

    def _wake(self, engine: Delivery) -> None:
        self._dirty[engine] = None
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        """One turn: pump the engines that have something to do, then propose what must last."""
        if self.closed:
            return
        now = self.replica.node.now_ns()
        pumped = self._pump(now)
        self._scheduled = bool(self._dirty)
        if self._scheduled:
            self.replica.node.server.turns.wait(self._run)
        proposal = flush(pumped, now)
        if proposal is not None:
            self.replica.propose_all(proposal.commands, proposal.confirms)
        for engine in pumped:
            at = engine.next_deadline()
            if at is not None and at < self._armed.get(engine, NEVER):
                self._armed[engine] = at
                heappush(self._timers, (at, next(self._serial), engine))
        self._arm()

    def _pump(self, now: int) -> list[Delivery]:
        """Those that the turn had time for; the others are the first of the next one."""
        deadline = perf_counter() + TURN_S
        dirty, self._dirty = self._dirty, {}
        pumped: list[Delivery] = []
        for engine in dirty:
            self._carry_out(engine, engine.pump(now))
            pumped.append(engine)
            if engine.more_work:
                self._dirty[engine] = None
            if perf_counter() > deadline:
                rest = dict.fromkeys(islice(dirty, len(pumped), None))
                self._dirty = rest | self._dirty
                break
        return pumped

    def _carry_out(self, engine: Delivery, effects: Iterable[Effect]) -> None:
        advised: list[Advisory] = []
        for effect in effects:
            match effect:
                case Deliver():
                    self.sender.deliver(effect, engine.consumer)
                case StatusMessage():
                    self.sender.status(effect.to, effect.reply, effect.header)
                case Confirm():
                    self.sender.status(effect.reply, b"", b"")
                case Propose():
                    self.replica.propose_all([effect.command], [])
                case Advisory():
                    advised.append(effect)
        if advised:
            self._advising.of_delivery(self.replica, engine.consumer, advised)

    def confirm(self, replies: Iterable[bytes]) -> None:
        for reply in replies:
            self.sender.status(reply, b"", b"")

    # -- timers ---------------------------------------------------------------------------------

    def _arm(self) -> None:
        while self._timers and self._timers[0][2].consumer.name not in self.engines:
            heappop(self._timers)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._timers:
            delay = max(self._timers[0][0] - self.replica.node.now_ns(), 0) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay, self._due)

    def _due(self) -> None:
        self._timer = None
        now = self.replica.node.now_ns()
        while self._timers and self._timers[0][0] <= now:
            engine = heappop(self._timers)[2]
            self._armed.pop(engine, None)
            if self.engines.get(engine.consumer.name) is engine:
                self._wake(engine)
        if not self._scheduled:
            self._arm()

    def _arm_expiry(self) -> None:
        now = self.replica.node.now_ns()
        at = self.stream.next_expiry(now)
        if at is None:
            return
        at = max(at, now + EXPIRY_CHECK_MIN_NS)
        if self._expiry is not None:
            if self._expiry_at <= at:
                return
            self._expiry.cancel()
        self._expiry_at = at
        self._expiry = asyncio.get_running_loop().call_later((at - now) / 1e9, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        if not self.closed:
            self.replica.propose_all(self.stream.due_commands(self.replica.stamp()), [])
            self._arm_expiry()
