"""Vocabulary of the Raft library: ids, roles, errors and the values that cross its boundaries.

Owns: the names and small values that all modules of raft share.
May not touch: I/O, clocks, random numbers, anything outside the standard library.
Spec: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", figure 2."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import NewType

NodeId = NewType("NodeId", int)
GroupId = NewType("GroupId", int)
Term = NewType("Term", int)
Index = NewType("Index", int)  # a Raft log position; a stream position is a sequence

NO_NODE = NodeId(0)


def node_id(name: str, incarnation: int = 0) -> NodeId:
    """The id of a server with this data directory: the same on every start, 63 bits, never zero.
    With another directory it is another id, so a member that lost its votes and its log has lost
    its id as well. Incarnation 0: a server without data."""
    text = f"{name}\0{incarnation}" if incarnation else name
    return NodeId((int.from_bytes(sha256(text.encode()).digest()[:8], "big") >> 1) or 1)


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"
    LEARNER = "learner"


@dataclass(frozen=True, slots=True)
class HardState:
    """What a node must remember after a crash, besides its log (Raft figure 2)."""

    term: Term = Term(0)
    vote: NodeId = NO_NODE
    commit: Index = Index(0)  # may be old: it only saves work after a restart
    # Goes up by one when the member loses its log and by one when it has recovered: odd means
    # that it must not vote yet (raft/core/vote_granting.py).
    lives: int = 0

    def after_loss(self) -> HardState:
        """The hard state of a member whose log is lost: term and vote stay, a new life begins."""
        return HardState(self.term, self.vote, Index(0), self.lives + 1 + self.lives % 2)


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a group, as in one CONFIG entry (the rules are in raft/core/membership.py).

    While `outgoing` is not empty the group is joint: every decision needs a majority of
    `voters` and a majority of `outgoing`. A node may be in `outgoing` and in `learners`: it
    votes until the joint phase ends."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()
    outgoing: tuple[NodeId, ...] = ()

    @property
    def joint(self) -> bool:
        return bool(self.outgoing)

    def has_voter(self, node: NodeId) -> bool:
        return node in self.voters or node in self.outgoing

    def all_voters(self) -> tuple[NodeId, ...]:
        """Voters and outgoing voters, each once."""
        return tuple(dict.fromkeys((*self.voters, *self.outgoing)))

    def everyone(self) -> tuple[NodeId, ...]:
        """Voters, outgoing voters and learners, each once."""
        return tuple(dict.fromkeys((*self.voters, *self.outgoing, *self.learners)))

    def alone(self, node: NodeId) -> bool:
        """Whether this node is the only voter."""
        return self.voters == (node,) and self.outgoing in ((), (node,))


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """The log position of a snapshot, and the members there (None: those the group began with)."""

    index: Index
    term: Term
    members: Members | None = field(default=None, compare=False)


class RaftError(Exception):
    """Base of the errors that callers of this library may see."""


@dataclass(eq=False)
class NotLeader(RaftError):
    """Definite: the proposal was not appended. `leader` is the node to ask instead, if known."""

    leader: NodeId | None

    def __str__(self) -> str:
        return f"not the leader; leader is {self.leader}"


class ChangeRefused(RaftError):
    """Definite: the members do not change. The text says why."""


class InvariantViolation(RaftError):
    """A bug or a broken disk: the replica stops; it never repairs itself by lowering an index."""


class NewProcessNeeded(RaftError):
    """This process cannot go on, whatever it retries; a new one can, as after a crash."""


def lacks_memory(error: BaseException) -> bool:
    """Whether the process was refused memory, also for the stack of a thread."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(lacks_memory, error.exceptions))
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or str(error) == "can't start new thread"
