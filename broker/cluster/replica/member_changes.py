"""Member changes at the leader: moves a stream's group to the peers of its assignment.

Owns: taking the steps, one at a time, for the streams that this node leads.
May not touch: which step is next (reconfiguration.py), how members change (raft.core), which
peers are wanted (api/stream_api.py).
Spec: docs/decisions/0010-reconfiguration-of-replicas.md."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from broker.cluster.meta.assignments import Assignment, RecordMembers
from broker.cluster.meta.meta_group import MetaGroup
from broker.cluster.meta.meta_requests import MetaRequests
from broker.cluster.replica.reconfiguration import Change, HandOverTo, Record, Step, Wait, next_step
from broker.jetstream.errors import JetStreamError
from raft import GroupId, NodeId, RaftError
from raft.host.host import Host

logger = logging.getLogger("jetraft.cluster")

STEP_EVERY_S: Final = 0.05
STEP_EVERY_MAX_S: Final = 0.5  # while nothing changes


class ReconfigurableReplica(Protocol):
    @property
    def group(self) -> GroupId: ...
    @property
    def name(self) -> str: ...
    @property
    def assignment(self) -> Assignment: ...
    @property
    def is_leading(self) -> bool: ...


@dataclass(slots=True)
class MemberChanges:
    host: Host
    meta_group: MetaGroup
    meta_requests: MetaRequests
    connected: Callable[[NodeId], bool]
    member_name: Callable[[NodeId], str]
    spawn: Callable[[Awaitable[None], str], object]
    _running: set[int] = field(default_factory=set)

    def check(self, replica: ReconfigurableReplica) -> None:
        """Leadership or the assignment has changed: start changing the members, if they differ."""
        if not replica.is_leading or replica.group in self._running:
            return
        if self.next_step(replica) is not None:
            self._running.add(replica.group)
            self.spawn(self._reconfigure(replica), f"members of {replica.name}")

    def next_step(self, replica: ReconfigurableReplica) -> Step | None:
        return next_step(
            self.host.status(replica.group).core,
            replica.assignment,
            connected=self.connected,
            recorded=self.meta_group.is_durable,
        )

    def describe(self, step: Step) -> str:
        match step:
            case Wait():
                return step.why
            case HandOverTo():
                return f"handing leadership over to {self._names((step.to,))}"
            case Record():
                return "reporting membership to meta leader"
            case Change() if step.learners:
                return f"adding peers {self._names(step.learners)} to catch up"
            case Change():
                return f"changing peers to {self._names(step.voters)}"

    def _names(self, nodes: tuple[NodeId, ...]) -> str:
        return ", ".join(sorted(self.member_name(node) for node in nodes))

    async def _reconfigure(self, replica: ReconfigurableReplica) -> None:
        """Take step after step while this node leads. Nothing is awaited between the last
        next_step and the end, so a new assignment is never missed."""
        last: Step | None = None
        pause_s = STEP_EVERY_S
        try:
            while replica.is_leading and (step := self.next_step(replica)) is not None:
                pause_s = STEP_EVERY_S if step != last else min(2 * pause_s, STEP_EVERY_MAX_S)
                if step != last:
                    logger.info("stream %s: %s", replica.name, self.describe(step))
                last = step
                await self._take(replica, step)
                await asyncio.sleep(pause_s)
        finally:
            self._running.discard(replica.group)

    async def _take(self, replica: ReconfigurableReplica, step: Step) -> None:
        known = replica.assignment
        try:
            match step:
                case Change():
                    self.host.change_members(
                        replica.group, voters=step.voters, learners=step.learners
                    )
                case HandOverTo():
                    self.host.transfer(replica.group, step.to)
                case Record():
                    members = [int(member) for member in step.members]
                    await self.meta_requests.change(
                        RecordMembers(known.account, known.name, known.group, known.peers, members)
                    )
        except (RaftError, JetStreamError) as refused:
            # Refused: `_reconfigure` computes the next step again.
            logger.debug("stream %s: %s: %s", replica.name, step, refused)
