"""The replicas of this node, by Raft group.

Owns: the table; nothing else adds to it or removes from it.
May not touch: which replicas this node should hold (membership.py), what a replica does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from broker.cluster.meta.assignments import Assignment, AssignmentTable
from broker.cluster.replica.replica import Replica
from broker.jetstream.config import Storage
from raft import NodeId, Term

OpenReplica = Callable[[Assignment, Sequence[NodeId]], Replica]


class ReplicaTable:
    """Iterating gives the replicas."""

    def __init__(self, assignments: AssignmentTable, open_replica: OpenReplica) -> None:
        self._assignments = assignments
        self._open_replica = open_replica
        self._replicas: dict[int, Replica] = {}

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._replicas.values()))

    def __len__(self) -> int:
        return len(self._replicas)

    def __contains__(self, group: int) -> bool:
        return group in self._replicas

    # -- reading --------------------------------------------------------------------------------

    def get(self, group: int) -> Replica | None:
        return self._replicas.get(group)

    def of_stream(self, account: str, name: str) -> Replica | None:
        assignment = self._assignments.get(account, name)
        return self._replicas.get(assignment.group) if assignment is not None else None

    def led(self, group: int) -> Replica | None:
        """The replica, if this node leads the group and serves it."""
        replica = self._replicas.get(group)
        return replica if replica is not None and replica.leading is not None else None

    def leads(self, group: int) -> bool:
        return self.led(group) is not None

    def wait_for_disk(self, group: int) -> bool:
        """Whether proposals for this group cannot make progress before a flush of this node's disk:
        it has one replica, in files. Otherwise other replicas can flush meanwhile."""
        replica = self.led(group)
        if replica is None or replica.relaxed or replica.storage is not Storage.FILE:
            return False
        return len(replica.assignment.peers) == 1

    def led_terms(self) -> list[tuple[int, Term]]:
        """Group and term of everything this node leads."""
        return [(r.group, r.term) for r in self._replicas.values() if r.leading is not None]

    def time_stepped(self) -> None:
        """Cluster time has jumped: reset the timers of the streams that this node leads."""
        for replica in self:
            if replica.leading is not None:
                replica.leading.time_stepped()

    # -- changing -------------------------------------------------------------------------------

    def open(self, assignment: Assignment, voters: Sequence[NodeId]) -> Replica:
        replica = self._open_replica(assignment, voters)
        self._replicas[assignment.group] = replica
        return replica

    def leave(self, replica: Replica) -> None:
        """Remove the replica from this node; the stream continues on other nodes."""
        del self._replicas[replica.group]
        replica.leave()

    def delete(self, group: int) -> bool:
        """The stream was deleted. False when there is no replica of it here."""
        replica = self._replicas.pop(group, None)
        if replica is not None:
            replica.delete()
        return replica is not None

    def discard(self, group: int) -> None:
        """Forget a replica whose group the host has already removed; its data stays."""
        self._replicas.pop(group).close()

    def close(self) -> None:
        """The process stops."""
        for replica in self:
            replica.close()
