"""The leader of every Raft group in the cluster, as known to this node.

Owns: the newest known leader of each group, and the callers that wait for one.
May not touch: Raft. A member learns the leader from its group, other nodes from the leader's
announcement. A later term wins. A leader that is not connected to this node does not count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.jetstream.errors import ErrCode, JetStreamError
from raft import NodeId, Term

NO_LEADER_WITHIN_S = 5.0


@dataclass(slots=True)
class LeaderTable:
    connected: Callable[[NodeId], bool]
    on_change: Callable[[int], None]  # the group has a new leader, or its leader serves now
    changes: int = 0  # how often a group got another leader
    _known: dict[int, tuple[Term, NodeId]] = field(default_factory=dict)
    _serving: dict[int, Term] = field(default_factory=dict)  # groups whose leader announced itself
    _waiting: dict[int, asyncio.Event] = field(default_factory=dict)

    def leader(self, group: int) -> NodeId | None:
        known = self._known.get(group)
        return known[1] if known is not None and self.connected(known[1]) else None

    def is_served(self, group: int) -> bool:
        """Whether the leader has announced that it serves the group."""
        known = self._known.get(group)
        return known is not None and self._serving.get(group) == known[0]

    async def wait(self, group: int, *, timeout_s: float = NO_LEADER_WITHIN_S) -> NodeId:
        """The group's leader, as soon as there is one. Raises CLUSTER_NOT_AVAIL."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while (leader := self.leader(group)) is None:
            if not await self._noted(group, deadline):
                raise JetStreamError(ErrCode.CLUSTER_NOT_AVAIL)
        return leader

    async def wait_served(self, group: int, *, timeout_s: float) -> bool:
        """Whether the leader announces in time that it serves the group. An announcement may be
        lost with a link, so if it does not come, call the leader anyway."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not self.is_served(group):
            if not await self._noted(group, deadline):
                return False
        return True

    async def _noted(self, group: int, deadline: float) -> bool:
        """Wait for the next `note` about the group. False: there was none in time."""
        event = self._waiting.setdefault(group, asyncio.Event())
        try:
            async with asyncio.timeout_at(deadline):
                await event.wait()
        except TimeoutError:
            return False
        return True

    def note(self, group: int, term: Term, leader: NodeId, *, serving: bool = False) -> None:
        """`serving`: the leader has announced itself. If it was already known to be elected, it may
        have dropped what it was sent until now, so `on_change` is called again."""
        known = self._known.get(group)
        if known is not None and known[0] > term:
            return
        self.changes += known is None or known[1] != leader
        self._known[group] = (term, leader)
        if serving:
            self._serving[group] = term
        event = self._waiting.pop(group, None)
        if event is not None:
            event.set()  # even if only the link to the leader is new
        if serving or known != (term, leader):
            self.on_change(group)

    def forget(self, group: int) -> None:
        self._known.pop(group, None)
        self._serving.pop(group, None)
