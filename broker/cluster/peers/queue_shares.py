"""How the messages of one delivery are shared among the members of a queue group.

Owns: the random choice, one per message, so that a backlog is spread evenly.
May not touch: how a share is sent."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from broker.subjects import Subscription

Message = TypeVar("Message")


def queue_shares(
    members: Sequence[Subscription], messages: Sequence[Message]
) -> list[tuple[Subscription, list[Message]]]:
    """Assign each message to one member; the order within a share is kept. A member that represents
    several subscribers of another node occurs that many times in `members`."""
    if len(members) == 1 or len(messages) == 1:
        return [(random.choice(members), list(messages))]
    shares: dict[int, tuple[Subscription, list[Message]]] = {}
    for message in messages:
        member = random.choice(members)
        share = shares.get(id(member))
        if share is None:
            share = shares[id(member)] = (member, [])
        share[1].append(message)
    return list(shares.values())
