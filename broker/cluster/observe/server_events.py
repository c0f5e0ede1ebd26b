"""Advisories of the system account about this server and its cluster.

Owns: which events were already sent, and the task that polls for new ones.
May not touch: what it polls.
The leader of the meta group reports its election, and which servers were removed. Every server
reports when its disk is full and when it dropped requests.
Spec: NATS JetStream advisories: DOMAIN.LEADER_ELECTED, SERVER.REMOVED, SERVER.OUT_OF_STORAGE,
API.LIMIT_REACHED."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from broker.jetstream.api import advisories
from broker.jetstream.api.advisories import Event
from broker.jetstream.config.names import get_hash

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.cluster.observe.advisories import Advisories

LOOK_EVERY_S: Final = 1.0


@dataclass(slots=True)
class ServerEvents:
    """One per node; `run` is its task."""

    advisories: Advisories
    system: Callable[[], Account]
    server: tuple[str, str]  # name and id
    cluster: str
    leads: Callable[[], bool]  # the meta group of a cluster, with all that it knows
    meta_cluster: Callable[[], dict[str, Any]]  # as /jsz shows it
    names: Callable[[], Collection[str]]  # of all servers of the cluster
    full: Callable[[], bool]
    dropped: Callable[[], int]  # requests, so far
    _led: bool = False
    _was_full: bool = False
    _dropped: int = 0
    _names: set[str] = field(default_factory=set)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for event in self.news():
                self.advisories.send(self.system(), event)

    def news(self) -> list[Event]:
        """Events since the last call."""
        found = [*self._of_leader(), *self._of_disk()]
        dropped = self.dropped()
        if dropped > self._dropped:
            found.append(advisories.limit_reached(self.server[0], dropped - self._dropped))
        self._dropped = dropped
        return found

    def _of_leader(self) -> list[Event]:
        leads, names = self.leads(), set(self.names())
        found: list[Event] = []
        if leads and not self._led:
            found.append(self._elected(self.meta_cluster()))
        elif leads:
            for name in sorted(self._names - names):
                server = (name, get_hash(name))
                found.append(advisories.server_event("removed", server, self.cluster))
        self._led, self._names = leads, names
        return found

    def _elected(self, shown: dict[str, Any]) -> Event:
        """In the form of nats-server: the id of the leader, which is one of the replicas."""
        leader = get_hash(shown["leader"])
        own = {"name": shown["leader"], "current": True, "active": 0, "peer": leader}
        others = [
            {name: value for name, value in one.items() if value or name != "offline"}
            for one in shown["replicas"]
        ]
        return advisories.domain_leader(self.cluster, leader, [own, *others])

    def _of_disk(self) -> list[Event]:
        full = self.full()
        new = full and not self._was_full
        self._was_full = full
        if not new:
            return []
        return [advisories.server_event("out_of_storage", self.server, self.cluster)]
