"""Bugs of queues without a bound, and of what happens when a bound is reached.

Owns: the replaced functions.
May not touch: anything while no bug is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.cluster.consumer_requests.waiting_for_leader import HELD_S, WaitingForLeader
from broker.cluster.publish.outbox_core import OutboxCore, OutboxEffect
from chaos.sim.bugs.broker_bug import BrokerBug, Replacement
from raft.host.host import Host

FLOOD: Final = ("flood",)
PULL: Final = ("pull consumers", "flood")


def _pause_nobody(_: object) -> object:
    def pause(_self: OutboxCore, _publisher: Any) -> list[OutboxEffect]:
        return []

    return pause


def _never_busy(original: Callable[..., Any]) -> object:
    def propose(self: Host, group: Any, data: bytes, **named: Any) -> Any:
        held = self._groups.get(group)
        waiting = 0 if held is None else held.waiting_bytes
        if held is not None:
            held.waiting_bytes = 0
        try:
            return original(self, group, data, **named)
        finally:
            if held is not None:
                held.waiting_bytes += waiting

    return propose


def _keep_everything(_: object) -> object:
    def keep(
        self: WaitingForLeader[Any], group: int, item: Any, size: int, *, owner: str, now_s: float
    ) -> bool:
        self._by_group.setdefault(group, []).append((now_s + HELD_S, size, item))
        self._owners[group] = owner
        self._count(owner, size)
        return True

    return keep


QUEUE_BUGS: Final[dict[str, BrokerBug]] = {
    "publishers are not paused": BrokerBug(
        "publishers wait while an outbox is over its bound",
        (Replacement(OutboxCore, "pause", _pause_nobody),),
        found_by=6,
        workloads=FLOOD,
        faults=("isolate", "kill"),
    ),
    "proposals without a bound": BrokerBug(
        "a group that has too much waiting takes no more proposals",
        (Replacement(Host, "propose", _never_busy),),
        found_by=6,
        workloads=FLOOD,
        faults=("slow disk", "slow link"),
    ),
    "requests wait without a bound": BrokerBug(
        "requests for a group without a leader are refused when too many wait",
        (Replacement(WaitingForLeader, "keep", _keep_everything),),
        found_by=8,
        workloads=PULL,
        faults=("kill", "isolate"),
    ),
}
