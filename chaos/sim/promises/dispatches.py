"""Promises about deliveries, checked when a leader makes them.

Owns: what each leader has sent, and which acks were confirmed to clients.
May not touch: deliveries; it observes `Delivery.pump` of every node.
Spec: only the newest leader is checked. A deposed leader that does not know it yet may deliver what
the new one has settled: preventing that would need a round trip per delivery."""
# ruff: noqa: SLF001 - only private fields show what the leader knows of acks

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.delivery.effects import Deliver, Effect
from broker.jetstream.delivery.engine import Delivery
from chaos.sim.promises.seen_replica import SeenReplica
from raft.types import GroupId

CLOCK_TOLERANCE = 0.9  # clocks of nodes run at different rates

Watched = tuple[str, str]  # stream, consumer
OfMessage = tuple[str, str, int]  # and a stream sequence


class Dispatches:
    """`replicas` finds those of a stream by node; `broken` ends the run."""

    def __init__(
        self,
        now_ns: Callable[[], int],
        node: Callable[[], str],
        replicas: Callable[[str], Mapping[str, SeenReplica]],
        broken: Callable[[str], None],
    ) -> None:
        self._now_ns = now_ns
        self._node = node
        self._replicas = replicas
        self._broken = broken
        self._confirmed: dict[OfMessage, int] = {}
        self._naks: Counter[OfMessage] = Counter()  # without delay
        self._nak_delays: dict[OfMessage, int] = {}  # the shortest one asked for
        self._timed: dict[Watched, int] = {}  # the shortest wait, 0: that of the configuration
        self._paused: dict[Watched, int] = {}  # since when
        self._newest: dict[GroupId, int] = {}  # the highest term that was seen
        self._last_ns: dict[OfMessage, int] = {}
        self._first: dict[tuple[Delivery, int], int] = {}
        self.sent: Counter[Watched] = Counter()

    # -- what clients do and are told

    def confirmed(self, stream: str, consumer: str, seq: int) -> None:
        """The broker has answered a double ack of this message."""
        self._confirmed.setdefault((stream, consumer, seq), self._now_ns())

    def nak(self, stream: str, consumer: str, seq: int, delay_ns: int = 0) -> None:
        """A client asks for a redelivery, immediately or after a delay."""
        message = (stream, consumer, seq)
        if delay_ns:
            self._nak_delays[message] = min(delay_ns, self._nak_delays.get(message, delay_ns))
        else:
            self._naks[message] += 1

    def timed(self, stream: str, consumer: str, *, least_ns: int = 0) -> None:
        """Only naks and the ack wait cause redeliveries of this consumer. `least_ns`: the shortest
        wait that an update gives it."""
        self._timed[stream, consumer] = least_ns

    def paused(self, stream: str, consumer: str) -> None:
        """A pause was answered. It lasts until `resumed`."""
        self._paused[stream, consumer] = self._now_ns()

    def resumed(self, stream: str, consumer: str) -> None:
        """A client is about to end the pause, or to change its end."""
        self._paused.pop((stream, consumer), None)

    # -- what leaders do

    def pumped(self, engine: Delivery, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                self._delivered(engine, effect)

    def _delivered(self, engine: Delivery, effect: Deliver) -> None:
        consumer = engine.consumer
        stream, node = consumer.stream.config.name, self._node()
        self.sent[stream, consumer.name] += len(effect.indices)
        replicas = self._replicas(stream)
        own = replicas.get(node)
        if own is None or self._deposed(own, replicas):
            return
        for at, index in enumerate(effect.indices):
            deliveries = 1 if effect.delivered is None else effect.delivered[at]
            fault = self._judge(engine, effect.rows.seq(index), deliveries)
            if fault:
                self._broken(f"{stream} > {consumer.name}: {node} {fault}")

    def _deposed(self, own: SeenReplica, replicas: Mapping[str, SeenReplica]) -> bool:
        """Whether another replica led later, even if it is down by now."""
        terms = (one.term for one in replicas.values() if one.group == own.group)
        newest = max(self._newest.get(own.group, 0), *terms)
        self._newest[own.group] = newest
        return own.term < newest

    def _judge(self, engine: Delivery, seq: int, deliveries: int) -> str:
        """What is wrong with this delivery; empty: nothing."""
        consumer = engine.consumer
        state, most = consumer.state, consumer.config.max_deliver
        message = (consumer.stream.config.name, consumer.name, seq)
        confirmed = self._confirmed.get(message)
        early = self._early(consumer, message, deliveries)
        self._last_ns[message] = self._now_ns()
        paused = self._paused.get(message[:2])
        if paused is not None:
            return f"delivers {seq}, although a pause was answered at {paused / 1e9:.4f} s"
        if confirmed is not None:
            return f"delivers {seq} again, whose ack was confirmed at {confirmed / 1e9:.4f} s"
        if state.settled(seq):
            return f"delivers {seq}, which is settled"
        if seq in state.pending and deliveries <= state.deliveries(seq):
            return f"counts {deliveries} deliveries of {seq} after {state.deliveries(seq)}"
        if 0 < most < deliveries:
            return f"delivers {seq} {deliveries} times, max_deliver is {most}"
        limit = consumer.config.max_ack_pending
        # Replicas may not know of the last acks; that matters when the limit was lowered.
        waiting = min(len(state.pending), len(engine._cursor.live.pending))
        if 0 < limit < waiting and deliveries == 1:
            return f"delivers {seq}: {waiting} wait for acks, max_ack_pending is {limit}"
        if early:
            return f"delivers {seq} again after {early / 1e9:.4f} s, before its wait is over"
        if deliveries == 1:
            before = self._first.get((engine, consumer.epoch), 0)
            if seq <= before:
                return f"delivers {seq} for the first time after {before}"
            self._first[engine, consumer.epoch] = seq
        return ""

    def _early(self, consumer: Consumer, message: OfMessage, deliveries: int) -> int:
        """After how many nanoseconds it is delivered again too early; 0: it is not."""
        last = self._last_ns.get(message)
        if last is None or deliveries == 1 or message[:2] not in self._timed:
            return 0
        config = consumer.config
        least = min(config.backoff) if config.backoff else config.ack_wait
        least = min(least, self._timed[message[:2]] or least)
        least = min(least, self._nak_delays.get(message, least))
        gap = self._now_ns() - last
        if gap >= least * CLOCK_TOLERANCE:
            return 0
        if self._naks[message]:
            self._naks[message] -= 1
            return 0
        return max(gap, 1)


@contextmanager
def watched_deliveries(dispatches: Dispatches) -> Iterator[None]:
    """Inside this context, `dispatches` sees what every delivery engine sends."""
    pump = Delivery.pump

    def watched(self: Delivery, now: int) -> Any:
        effects = pump(self, now)
        if effects:
            dispatches.pumped(self, effects)
        return effects

    Delivery.pump = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        Delivery.pump = pump  # type: ignore[method-assign]
