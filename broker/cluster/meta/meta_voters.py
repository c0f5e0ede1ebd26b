"""The voters of the meta group: the next step from the current voters to the wanted ones.

Owns: that decision, as a pure function of the table of nodes and of the group as its leader sees
it, and the loop of the leader that takes the steps. No step is stored: after any crash, the next
leader continues from the state of the group.
May not touch: the table of nodes (node_table.py), how members change (raft.core).
Spec: docs/decisions/0015-nodes-come-and-go.md; Raft paper, section 6."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.cluster.meta.assignments import META_GROUP
from broker.cluster.meta.meta_group import MetaGroup
from broker.cluster.meta.node_table import NodeTable, Standing
from raft import NodeId, RaftError
from raft.core.ready import CoreStatus

logger = logging.getLogger("jetraft.cluster")

STEP_EVERY_S: Final = 0.1
CAUGHT_UP_WITHIN: Final = 16  # entries of the meta log


@dataclass(frozen=True, slots=True)
class MetaMembers:
    """Propose these members to the meta group."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class MetaTransfer:
    """Transfer the leadership of the meta group to this voter: its leader is removed."""

    to: NodeId


def next_meta_step(
    status: CoreStatus, nodes: NodeTable, *, connected: Callable[[NodeId], bool]
) -> MetaMembers | MetaTransfer | None:
    """The next step of the leader of the meta group; None: nothing to do, or not yet.

    A new member is a learner first, and votes once it has caught up. A node that leaves loses its
    vote first, and stays as a learner until its replicas have moved: such a node is often down, and
    the others should not need every vote for that long. A removed incarnation stays a voter until
    its replacement has caught up: until then the others need every vote in any case. No step leads
    to voters without a connected majority."""
    if status.outgoing or status.members_index > status.commit or status.transfer_to is not None:
        return None
    present = [NodeId(record.node) for record in nodes.present()]
    wanted = {NodeId(r.node) for r in nodes.present() if r.standing is not Standing.LEAVING}
    caught_up = {status.node} | {
        peer.node
        for peer in status.peers
        if peer.state == "replicate"
        and peer.match + CAUGHT_UP_WITHIN >= status.last_index
        and connected(peer.node)
    }
    promoted = [node for node in status.learners if node in wanted and node in caught_up]
    pending = {node for node in wanted if node not in status.voters and node not in promoted}
    staying = [node for node in status.voters if _stays(node, nodes, pending)]
    voters = (*staying, *promoted)
    if status.node not in voters:
        successors = [node for node in staying if node in caught_up]
        return MetaTransfer(successors[0]) if successors else None
    if set(voters) != set(status.voters) and not _has_quorum(voters, connected):
        voters = status.voters
    learners = tuple(sorted(node for node in present if node not in voters))
    if set(voters) == set(status.voters) and set(learners) == set(status.learners):
        return None
    return MetaMembers(voters, learners)


def _stays(node: NodeId, nodes: NodeTable, pending: set[NodeId]) -> bool:
    """Whether the voter stays. An unknown one was removed so long ago that the table forgot it."""
    record = nodes.get(node)
    if record is None:
        return False
    if record.standing is Standing.REMOVED:
        return record.replaced_by in pending
    return record.standing is not Standing.LEAVING


def may_vote(status: CoreStatus, node: NodeId) -> bool:
    """Whether the node has a vote in the meta group, or would have if the leader failed now."""
    unsettled = status.members_index > status.commit
    return unsettled or node in status.voters or node in status.outgoing


def _has_quorum(voters: tuple[NodeId, ...], connected: Callable[[NodeId], bool]) -> bool:
    return 2 * sum(map(connected, voters)) > len(voters)


@dataclass(slots=True)
class MetaVoters:
    """`run` is a task of every node; it acts only on the leader of the meta group."""

    group: MetaGroup
    nodes: NodeTable
    connected: Callable[[NodeId], bool]
    member_name: Callable[[NodeId], str]
    _refusal: str = ""  # the last one that was logged

    async def run(self) -> None:
        while True:
            await asyncio.sleep(STEP_EVERY_S)
            if self.group.knows_all:
                self._step()

    def _step(self) -> None:
        host = self.group.host
        try:
            status = host.status(META_GROUP).core
            step = next_meta_step(status, self.nodes, connected=self.connected)
            if isinstance(step, MetaMembers):
                host.change_members(META_GROUP, voters=step.voters, learners=step.learners)
                self._refusal = ""
                logger.info(
                    "meta group: voters %s, learners %s",
                    self._names(step.voters), self._names(step.learners) or "none",
                )  # fmt: skip
            elif step is not None:
                host.transfer(META_GROUP, step.to)
        except RaftError as refused:
            if str(refused) != self._refusal:  # the next step decides what to do instead
                self._refusal = str(refused)
                logger.warning("meta group: its members cannot be changed now: %s", refused)

    def _names(self, nodes: tuple[NodeId, ...]) -> str:
        return ", ".join(sorted(self.member_name(node) for node in nodes))
