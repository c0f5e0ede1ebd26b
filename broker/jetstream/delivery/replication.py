"""What the leader replicates about its consumers: deliveries made and acknowledgements received.

Owns: the record of deliveries since the last Progress entry, and the order of one turn's commands:
Progress before Acks, confirmations after both.
May not touch: ack state, Raft; the caller proposes the commands.
Spec: docs/ARCHITECTURE.md, "Consumers". At most one Progress and one Acks entry per stream at a
time, whatever the number of consumers; changes that no client waits for are batched (Urgency)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol

from broker.jetstream.commands.consumer_commands import (
    Acks,
    ConsumerAcks,
    ConsumerProgress,
    DeliveryProgress,
)
from broker.jetstream.commands.stream_commands import AnyCommand

# Ack none: its progress matters only for consumer info and for where a new leader resumes, so it
# is replicated rarely.
LAZY_INTERVAL_NS: Final = 250_000_000
LAZY_MESSAGES: Final = 10_000
# Pending changes are replicated immediately when there are this many.
WAITING_MAX: Final = 1_000


class Urgency(IntEnum):
    """How soon an engine's changes must be replicated. A crash before that only repeats
    deliveries."""

    NOTHING = 0
    CAN_WAIT = 1  # until more changes share the entry
    NOW = 2  # a client waits for it


class ProgressRecord:
    """Deliveries since the last Progress entry: first deliveries as runs, redeliveries one by one.

    `lazy` is for consumers without acks.
    """

    __slots__ = ("_again", "_first", "_lazy", "_messages", "_since")

    def __init__(self, *, lazy: bool) -> None:
        self._lazy = lazy
        self.clear()

    def clear(self) -> None:
        self._first: list[int] = []
        self._again: list[int] = []
        self._messages = 0
        self._since = 0

    def sent(self, count: int, now: int) -> None:
        """`count` messages were delivered; which ones does not matter."""
        if not self._messages:
            self._since = now
        self._messages += count

    def sent_run(self, first: int, *, consumer_seq: int, count: int, now: int) -> None:
        """Stream sequences from `first` on, with consumer sequences from `consumer_seq` on."""
        self.sent(count, now)
        runs = self._first
        if runs and runs[-3] + runs[-1] == first and runs[-2] + runs[-1] == consumer_seq:
            runs[-1] += count
        else:
            runs += (first, consumer_seq, count)

    def sent_again(self, stream_seq: int, *, deliveries: int, now: int) -> None:
        self.sent(1, now)
        self._again += (stream_seq, deliveries)

    def urgency(self, now: int) -> Urgency:
        if not self._messages:
            return Urgency.NOTHING
        if self._lazy:
            return Urgency.NOW if self._is_due(now) else Urgency.NOTHING
        return Urgency.NOW if self._messages >= WAITING_MAX else Urgency.CAN_WAIT

    def deadline(self) -> int | None:
        """When a lazy record must be replicated at the latest; None if nothing is recorded."""
        return self._since + LAZY_INTERVAL_NS if self._lazy and self._messages else None

    def take(
        self, consumer: str, now: int, *, epoch: int, consumer_seq: int, stream_seq: int
    ) -> ConsumerProgress | None:
        """Return the record and clear it; None if there is nothing to replicate yet."""
        if not self._messages or (self._lazy and not self._is_due(now)):
            return None
        progress = ConsumerProgress(
            consumer, epoch, consumer_seq, stream_seq, self._first, self._again
        )
        self.clear()
        return progress

    def _is_due(self, now: int) -> bool:
        return self._messages >= LAZY_MESSAGES or now >= self._since + LAZY_INTERVAL_NS


@dataclass(slots=True)
class TurnProposal:
    """Commands to propose in this order, and the replies to confirm when the last one is applied.

    `confirms` are reply subjects of double acks: each gets an empty message after the last
    command has been committed and applied, never before. A proposal with confirms has commands.
    """

    commands: list[AnyCommand] = field(default_factory=list)
    confirms: list[bytes] = field(default_factory=list)


class ProgressSource(Protocol):
    """The delivery engine of one consumer, as far as replication needs it."""

    def take_progress(self, now: int) -> ConsumerProgress | None: ...
    def take_acks(self, now: int) -> tuple[ConsumerAcks, list[bytes]] | None: ...


def flush(deliveries: Iterable[ProgressSource], now: int, *, stamp_ns: int) -> TurnProposal | None:
    """Collect what the engines of one stream must replicate: at most one Progress and one Acks.
    `stamp_ns` is their timestamp, in cluster time.

    Call it only when the commands can be proposed immediately, and propose them in order: they are
    not kept here. An engine whose commands were lost must be closed and rebuilt.
    """
    progress: list[ConsumerProgress] = []
    acks: list[ConsumerAcks] = []
    proposal = TurnProposal()
    for delivery in deliveries:
        made = delivery.take_progress(now)
        if made is not None:
            progress.append(made)
        taken = delivery.take_acks(now)
        if taken is not None:
            acks.append(taken[0])
            proposal.confirms += taken[1]
    if progress:
        proposal.commands.append(DeliveryProgress(stamp_ns, progress))
    if acks:
        proposal.commands.append(Acks(stamp_ns, acks))
    return proposal if proposal.commands else None
