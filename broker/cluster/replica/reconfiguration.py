"""Reconfiguration of a stream's Raft group: the next step from the members it has to those it
should have.

Owns: the decision what the leader does next, as a pure function of the assignment and of the
group as the leader sees it. No step is stored: after any crash, the next leader continues from the
state of the group.
May not touch: sockets, clocks, Raft itself (member_changes.py takes the steps).
Spec: docs/decisions/0010-reconfiguration-of-replicas.md; Raft paper, section 6."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.cluster.meta.assignments import Assignment
from raft import NodeId
from raft.core.ready import CoreStatus

CAUGHT_UP_WITHIN: Final = 64  # entries: under load no peer has the very last entry for long


@dataclass(frozen=True, slots=True)
class Wait:
    """A change is in progress, or a peer has to catch up first."""

    why: str
    kind: str = "membership"  # as stream info shows it


@dataclass(frozen=True, slots=True)
class Change:
    """Propose these members to the group."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """Record in the meta group which nodes vote, or are about to."""

    members: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class HandOverTo:
    """Transfer leadership to this member."""

    to: NodeId


Step = Wait | Change | Record | HandOverTo


def next_step(
    status: CoreStatus,
    assignment: Assignment,
    *,
    connected: Callable[[NodeId], bool],
    recorded: bool,
) -> Step | None:
    """The leader's next step; None when the group is as wanted. `recorded`: the assignment is on
    this node's disk and would be known after a restart."""
    target = tuple(NodeId(peer) for peer in assignment.peers)
    members = {NodeId(member) for member in assignment.members}
    if status.outgoing or status.members_index > status.commit:
        return Wait("waiting for the change of members to be committed")
    if status.transfer_to is not None:
        return Wait("waiting for another peer to take over")
    if set(status.voters) == set(target) and not status.learners:
        return Record(target) if members != set(target) else None
    caught_up = _caught_up(status, connected)
    successors = [node for node in target if node in status.voters and node in caught_up]
    if status.node not in target and successors:
        return HandOverTo(successors[0])
    new = tuple(node for node in target if node not in status.voters)
    if not recorded:
        return Wait("waiting for the assignment to be on disk", "meta")
    if not set(new) <= set(status.learners):
        return Change(status.voters, new)
    if not set(new) <= caught_up:
        return Wait("waiting for peer to catch up before adding it", "catchup")
    everyone = tuple(dict.fromkeys((*status.voters, *target)))
    if not set(everyone) <= members:
        return Record(everyone)
    return Change(target)


def _caught_up(status: CoreStatus, connected: Callable[[NodeId], bool]) -> set[NodeId]:
    """The members that are connected and have (nearly) the whole log."""
    caught_up = {
        peer.node
        for peer in status.peers
        if peer.state == "replicate"
        and peer.match + CAUGHT_UP_WITHIN >= status.last_index
        and connected(peer.node)
    }
    return caught_up | {status.node}
