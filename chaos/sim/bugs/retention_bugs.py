"""Bugs of retention and of copies: messages let go too early, messages skipped.

Owns: the replaced functions.
May not touch: anything while no bug is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.cluster.origins.origin_reader import OriginReader
from broker.jetstream.commands.consumer_commands import ConsumerProgress, from_runs
from broker.jetstream.consumer.consumer import Consumer
from broker.jetstream.stream.interest import ConsumerInterest
from chaos.sim.bugs.broker_bug import BrokerBug, Replacement

RETENTION: Final = ("retention",)


def _keep_cache(_: object) -> object:
    def consumers_changed(_self: ConsumerInterest) -> None:
        """Does not clear the cache of subjects when consumers change."""

    return consumers_changed


def _needed_by_the_first(_: object) -> object:
    def unneeded(self: ConsumerInterest, subject: bytes, seq: int) -> bool:
        consumers = self._consumers.values()
        return any(consumer.settled(seq) and consumer.wants(subject) for consumer in consumers)

    return unneeded


def _let_go_at_delivery(original: Callable[..., None]) -> object:
    def apply_progress(self: Consumer, progress: ConsumerProgress, *, now_ns: int) -> None:
        original(self, progress, now_ns=now_ns)
        first = progress.first
        runs = [number for i in range(0, len(first), 3) for number in (first[i], first[i + 2])]
        self.stream.consumer_acked(self, list(from_runs(runs)))

    return apply_progress


def _read_after_the_next(original: Callable[..., Any]) -> object:
    async def consume(self: OriginReader, origin: Any) -> None:
        self._known += 1 if self._known else 0
        await original(self, origin)

    return consume


RETENTION_BUGS: Final[dict[str, BrokerBug]] = {
    "retention forgets a new consumer": BrokerBug(
        "interest retention keeps what a new consumer selects",
        (Replacement(ConsumerInterest, "consumers_changed", _keep_cache),),
        found_by=30,
        workloads=RETENTION,
    ),
    "interest of one consumer counts": BrokerBug(
        "a message stays until every consumer that selects it has acked it",
        (Replacement(ConsumerInterest, "_unneeded", _needed_by_the_first),),
        found_by=0,
        workloads=RETENTION,
    ),
    "let go at delivery": BrokerBug(
        "a work queue keeps a message until it is acked",
        (Replacement(Consumer, "apply_progress", _let_go_at_delivery),),
        found_by=1,
        workloads=RETENTION,
    ),
    "mirror skips at a reconnect": BrokerBug(
        "a mirror or source goes on with the next message that it has not stored",
        (Replacement(OriginReader, "_consume", _read_after_the_next),),
        found_by=0,
        workloads=("mirrors and sources",),
    ),
}
