"""Vocabulary of the Raft library: ids, roles and the facts that cross its boundaries.

Owns: the names and small values that every raft module shares.
May not touch: I/O, clocks, dice, anything outside the standard library.
Spec: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", figure 2."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import NewType

NodeId = NewType("NodeId", int)
GroupId = NewType("GroupId", int)
Term = NewType("Term", int)
Index = NewType("Index", int)  # a Raft log position; a stream position is a sequence

NO_NODE = NodeId(0)


def node_id(name: str) -> NodeId:
    """The id a server name stands for: stable over restarts, 63 bits, never zero."""
    return NodeId((int.from_bytes(sha256(name.encode()).digest()[:8], "big") >> 1) or 1)


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"
    LEARNER = "learner"


@dataclass(frozen=True, slots=True)
class HardState:
    """What a node must remember over a crash, besides its log (Raft figure 2)."""

    term: Term = Term(0)
    vote: NodeId = NO_NODE
    commit: Index = Index(0)  # may lag: it only saves work after a restart


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """The log position a snapshot stands for."""

    index: Index
    term: Term


class RaftError(Exception):
    """Base of the errors a caller of this library may meet."""


@dataclass(eq=False)
class NotLeader(RaftError):
    """Definite: the proposal was not appended. `leader` is where to go, if known."""

    leader: NodeId | None

    def __str__(self) -> str:
        return f"not the leader; leader is {self.leader}"


class InvariantViolation(RaftError):  # noqa: N818 - an accusation of ourselves, not an error code
    """We are wrong: the replica stops rather than repair by lowering a number."""
