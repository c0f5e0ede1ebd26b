"""Bugs of consumers that change: updates, pauses, inactivity, watches of keys.

Owns: the replaced functions.
May not touch: anything while no bug is installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from broker.jetstream.commands.stream_commands import DeleteConsumer
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.consumer.start_position import Start
from broker.jetstream.delivery.effects import Propose
from broker.jetstream.delivery.engine import Delivery
from broker.jetstream.delivery.inactivity import Inactivity
from broker.jetstream.stream import consumer_set
from broker.subjects import Steps
from chaos.sim.bugs.broker_bug import BrokerBug, Replacement

CHANGED: Final = ("changed consumers",)
INACTIVE: Final = ("inactive consumers",)
WATCH: Final = ("key-value watch",)


def _decode_first_config(original: Any) -> object:
    """As if a checkpoint had the configuration that the consumer was created with."""

    def decode(cls: type[Consumer], stream: Any, blob: bytes) -> Consumer:
        consumer: Consumer = original.__func__(cls, stream, blob)
        consumer.config = replace(consumer.config, description="0")
        return consumer

    return classmethod(decode)


def _forget_pauses(original: Any) -> object:
    def decode(cls: type[Consumer], stream: Any, blob: bytes) -> Consumer:
        consumer: Consumer = original.__func__(cls, stream, blob)
        consumer.config = replace(consumer.config, pause_until=None)
        return consumer

    return classmethod(decode)


def _resume_at_update(original: Callable[..., None]) -> object:
    def configure(self: Consumer, config: Any) -> None:
        if config.description != self.config.description:
            config = replace(config, pause_until=None)
        original(self, config)

    return configure


def _deliver_anyway(_: object) -> object:
    """The engine does not know of the pause until the next pump."""

    def check_pause(self: Delivery, now: int) -> None:
        until = self.consumer.config.pause_until or 0
        self._paused = until > self._time.to_cluster(now) and not self.has_receiver()

    return check_pause


def _no_use(_: object) -> object:
    def used(_self: Inactivity, _now: int) -> None:
        """Not counted."""

    return used


def _rest_in_use(_: object) -> object:
    """Waiting requests do not count as use either."""

    def check_idle(self: Delivery, now: int) -> None:
        deadline, consumer = self._idle_deadline(), self.consumer
        if deadline is not None and now >= deadline:
            self._effects.append(Propose(DeleteConsumer(now, consumer.name, consumer.incarnation)))
            self._ending = True

    return check_idle


def _rest_by_the_local_clock(original: Callable[..., None]) -> object:
    def check_idle(self: Delivery, _now: int) -> None:
        original(self, time.time_ns())

    return check_idle


def _serve_to_the_end(original: Callable[..., None]) -> object:
    """As if a deletion that is already in the log had not been proposed."""

    def check_idle(self: Delivery, now: int) -> None:
        original(self, now)
        if self._ending:
            self._ending = False
            self._idle.used(now)

    return check_idle


def _delete_here_only(original: Callable[..., None]) -> object:
    """The leader deletes the consumer without a log entry."""

    def check_idle(self: Delivery, now: int) -> None:
        before = len(self._effects)
        original(self, now)
        if len(self._effects) > before:
            del self._effects[before:]
            self.consumer.stream.consumers.pop(self.consumer.name, None)  # type: ignore[attr-defined]

    return check_idle


def _never_rest(_: object) -> object:
    def deadline(_self: Inactivity, *, extended_ns: int = 0) -> int | None:
        return None

    return deadline


def _start_one_later(original: Callable[..., Steps[Start]]) -> object:
    def start_of(config: Any, store: Any, *, max_msgs_per_subject: int) -> Steps[Start]:
        start = yield from original(config, store, max_msgs_per_subject=max_msgs_per_subject)
        if config.opt_start_seq:
            start.seq += 1
        return start

    return start_of


CHANGE_BUGS: Final[dict[str, BrokerBug]] = {
    "consumer update lost at a restart": BrokerBug(
        "a checkpoint has the configuration of the last update",
        (Replacement(Consumer, "decode", _decode_first_config),),
        found_by=53,
        workloads=CHANGED,
    ),
    "pause forgotten at a restart": BrokerBug(
        "a pause is part of a checkpoint",
        (Replacement(Consumer, "decode", _forget_pauses),),
        found_by=53,
        workloads=CHANGED,
        faults=("kill", "stop"),
    ),
    "update ends a pause": BrokerBug(
        "an update leaves a pause as it is",
        (Replacement(Consumer, "_configure", _resume_at_update),),
        found_by=2,
        workloads=CHANGED,
    ),
    "a paused consumer delivers": BrokerBug(
        "nothing is delivered while a pause lasts",
        (Replacement(Delivery, "_check_pause", _deliver_anyway),),
        found_by=1,
        workloads=CHANGED,
    ),
    "a used consumer goes away": BrokerBug(
        "pull requests, deliveries and acks begin the inactivity anew",
        (
            Replacement(Inactivity, "used", _no_use),
            Replacement(Delivery, "_check_idle", _rest_in_use),
        ),
        found_by=0,
        workloads=INACTIVE,
    ),
    "inactivity by the local clock": BrokerBug(
        "a step of a clock makes no consumer inactive",
        (Replacement(Delivery, "_check_idle", _rest_by_the_local_clock),),
        found_by=9,
        workloads=INACTIVE,
        faults=("clock jump",),
    ),
    "inactive consumer deleted by its leader alone": BrokerBug(
        "a consumer is deleted by an entry of the log",
        (Replacement(Delivery, "_check_idle", _delete_here_only),),
        found_by=0,
        workloads=INACTIVE,
    ),
    "served while its deletion is under way": BrokerBug(
        "a consumer whose deletion was proposed serves nobody",
        (Replacement(Delivery, "_check_idle", _serve_to_the_end),),
        found_by=31,
        workloads=INACTIVE,
        faults=("slow disk",),
    ),
    "an inactive consumer stays": BrokerBug(
        "a consumer that is not used for its inactive_threshold is deleted",
        (Replacement(Inactivity, "deadline", _never_rest),),
        found_by=0,
        workloads=INACTIVE,
    ),
    "a watcher misses an update at a reconnect": BrokerBug(
        "a consumer begins with the sequence that it was asked to begin with",
        (Replacement(consumer_set, "start_of", _start_one_later),),
        found_by=12,
        workloads=WATCH,
    ),
}
