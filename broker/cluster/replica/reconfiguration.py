"""The way of a Raft group from the members it has to those it shall have, step by step.

Owns: what the leader of a stream does next, as a pure function of the assignment and of the
members as the leader sees them. No step is remembered, so that after any crash the next leader
goes on from where the group is.
May not touch: sockets, clocks, Raft itself (membership.py takes the steps).
Spec: docs/decisions/0010-reconfiguration-of-replicas.md; Raft section 6."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.cluster.meta.assignments import Assignment
from raft import NodeId
from raft.core.ready import CoreStatus

LEVEL_WITHIN: Final = 64  # entries: under load nobody is level for longer than a moment


@dataclass(frozen=True, slots=True)
class Wait:
    """Something is under way, or somebody has to catch up first."""

    why: str
    kind: str = "membership"  # as clients are told


@dataclass(frozen=True, slots=True)
class Change:
    """The group shall have these members."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """The meta group shall know who has a vote, or is about to."""

    members: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class HandOver:
    to: NodeId


Step = Wait | Change | Record | HandOver


def next_step(
    status: CoreStatus,
    assignment: Assignment,
    *,
    connected: Callable[[NodeId], bool],
    recorded: bool,
) -> Step | None:
    """What the leader does next; None when the group is as it shall be. `recorded`: what the
    assignment says is on this node's disk, and would be known after a restart."""
    target = tuple(NodeId(peer) for peer in assignment.peers)
    members = {NodeId(member) for member in assignment.members}
    if status.outgoing or status.members_index > status.commit:
        return Wait("waiting for the change of members to be committed")
    if status.transfer_to is not None:
        return Wait("waiting for another peer to take over")
    if set(status.voters) == set(target) and not status.learners:
        return Record(target) if members != set(target) else None
    level = _level(status, connected)
    heirs = [node for node in target if node in status.voters and node in level]
    if status.node not in target and heirs:
        return HandOver(heirs[0])
    new = tuple(node for node in target if node not in status.voters)
    if not recorded:
        return Wait("waiting for the assignment to be on disk", "meta")
    if not set(new) <= set(status.learners):
        return Change(status.voters, new)
    if not set(new) <= level:
        return Wait("waiting for peer to catch up before adding it", "catchup")
    everyone = tuple(dict.fromkeys((*status.voters, *target)))
    if not set(everyone) <= members:
        return Record(everyone)
    return Change(target)


def _level(status: CoreStatus, connected: Callable[[NodeId], bool]) -> set[NodeId]:
    """Who could take part in a decision at once."""
    level = {
        peer.node
        for peer in status.peers
        if peer.state == "replicate"
        and peer.match + LEVEL_WITHIN >= status.last_index
        and connected(peer.node)
    }
    return level | {status.node}
