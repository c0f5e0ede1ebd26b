"""What the engines of one stream have to tell its replicas, gathered once per turn of the loop.

Owns: the order of Progress before Acks, and confirmations behind both.
May not touch: Raft; the caller proposes.
Spec: one Progress and one Acks entry per stream and turn, whatever the number of consumers."""

from __future__ import annotations

from collections.abc import Iterable

from broker.jetstream.commands.consumer_commands import (
    Acks,
    ConsumerAcks,
    ConsumerProgress,
    DeliveryProgress,
)
from broker.jetstream.delivery.effects import TurnProposal
from broker.jetstream.delivery.engine import Delivery


def flush(deliveries: Iterable[Delivery], now: int) -> TurnProposal | None:
    """What a stream's engines have to tell the replicas: at most one Progress and one Acks.

    Call it only when the commands can be proposed at once, and propose them in order: what it
    returns is not kept. An engine whose commands got lost must be closed and rebuilt.
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
        proposal.commands.append(DeliveryProgress(now, progress))
    if acks:
        proposal.commands.append(Acks(now, acks))
    return proposal if proposal.commands else None
