"""Raft as a library: a pure core, and the host, store and transport that run it.

Owns: the public names of the core; raft.host, raft.store and raft.transport export their own.
May not touch: broker.
Spec: the Raft paper; raft/DIVERGENCE.md lists where this library differs from it."""

from raft.core.log import LogReader, MemoryReader, RaftLog
from raft.core.messages import Entry, EntryKind, Message, MessageKind
from raft.core.raft_core import CoreConfig, CoreStatus, RaftCore, Ready
from raft.core.ready import ReadState
from raft.types import (
    NO_NODE,
    ChangeRefused,
    GroupId,
    HardState,
    Index,
    InvariantViolation,
    Members,
    NodeId,
    NotLeader,
    RaftError,
    Role,
    SnapshotMeta,
    Term,
    node_id,
)

__all__ = [
    "NO_NODE",
    "ChangeRefused",
    "CoreConfig",
    "CoreStatus",
    "Entry",
    "EntryKind",
    "GroupId",
    "HardState",
    "Index",
    "InvariantViolation",
    "LogReader",
    "Members",
    "MemoryReader",
    "Message",
    "MessageKind",
    "NodeId",
    "NotLeader",
    "RaftCore",
    "RaftError",
    "RaftLog",
    "ReadState",
    "Ready",
    "Role",
    "SnapshotMeta",
    "Term",
    "node_id",
]
