"""Bugs of nodes and of consensus inside the broker: flushes, sessions, leases, membership.

Owns: the replaced functions.
May not touch: anything while no bug is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from chaos.sim.bugs.broker_bug import BrokerBug, Replacement
from raft.host.rounds import Effects, Rounds

PUBLISHING: Final = ("acked publishers",)
Written = Callable[[Rounds[Any], int], Effects[Any]]


def _promise_when_written(original: Written) -> Written:
    def written(self: Rounds[Any], number: int) -> Effects[Any]:
        effects = original(self, number)
        batch = self._in_flight
        if batch is not None:
            promises, batch.promises = batch.promises, []
            self._release(promises, effects)
        return effects

    return written


NODE_BUGS: Final[dict[str, BrokerBug]] = {
    "ack before flush": BrokerBug(
        "a vote or an append is answered only after its batch is flushed (Raft figure 2)",
        (Replacement(Rounds, "written", _promise_when_written),),
        found_by=24,
        workloads=PUBLISHING,
    ),
}
