"""Raft as a library: a pure core, and the host, store and transport that surround it.

Owns: the public names of the pure part; the shells are imported by module.
May not touch: broker.
Spec: DIVERGENCE.md says where it leaves the paper."""

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
