"""Hands leaderships over before this node stops (lame duck mode, shutdown) or while its clock is
wrong.

Owns: the choice of the next leader for each group this node leads.
May not touch: the transfer itself (raft)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from broker.cluster.meta.assignments import META_GROUP
from broker.cluster.meta.members import ClusterMembers
from broker.cluster.meta.meta_group import MetaGroup
from broker.cluster.polling import eventually
from broker.cluster.replica.replica_table import ReplicaTable
from raft import NodeId, RaftError

HAND_OVER_WITHIN_S = 1.0  # a stopping node waits at most this long for other leaders


@dataclass(slots=True)
class HandOver:
    replicas: ReplicaTable
    meta_group: MetaGroup
    members: ClusterMembers
    connected: Callable[[NodeId], bool]
    yields: Callable[[NodeId], bool]  # a node whose clock is wrong takes no leadership

    def begin(self) -> None:
        """Transfer every leadership to a connected peer, after proposing the consumers' pending
        changes. Skips a leadership that was just lost, which the replica does not know yet."""
        for replica in self.replicas:
            successors = self._able(replica.successors()) if replica.leading is not None else []
            if successors:
                with suppress(RaftError):
                    replica.transfer(successors[0])
            elif replica.leading is not None:
                replica.leading.propose_changes()  # acks of the last milliseconds
        if self.meta_group.is_leader:
            voters = self._able(self._connected_meta_voters())
            if voters:
                with suppress(RaftError):
                    self.meta_group.host.transfer(META_GROUP, voters[0])

    def _able(self, nodes: list[NodeId]) -> list[NodeId]:
        return [node for node in nodes if not self.yields(node)]

    async def finish(self) -> None:
        """`begin`, then wait, for a bounded time, until other nodes have taken over."""
        self.begin()
        await eventually(self._done, timeout_s=HAND_OVER_WITHIN_S, every_s=0.01)

    def _done(self) -> bool:
        """Whether every group with other connected members has another leader."""
        shared = any(r.leading is not None and self._able(r.successors()) for r in self.replicas)
        meta_voters = self.meta_group.is_leader and self._able(self._connected_meta_voters())
        return not (shared or meta_voters)

    def _connected_meta_voters(self) -> list[NodeId]:
        """Connected voters of the meta group. Not every member is one: a node that has just joined
        is a learner first."""
        voters = self.meta_group.host.status(META_GROUP).core.voters
        return [node for node in self.members.others if node in voters and self.connected(node)]
