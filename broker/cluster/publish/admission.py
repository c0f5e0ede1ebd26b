"""What this node knows about a publish before it is forwarded.

Owns: nothing; it reads the disk's state, the assignment and the local replica.
May not touch: the replicated checks, which every replica makes at apply.
Spec: docs/decisions/0008-recovery-from-a-failed-disk.md for the full disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from broker.cluster.meta.assignments import Assignment
from broker.jetstream.config.stream_config import Retention, Storage
from broker.jetstream.config.transforms import mapping_of
from raft import NodeId


class LogDisk(Protocol):
    @property
    def full(self) -> bool: ...


class LogWriter(Protocol):
    @property
    def failure(self) -> BaseException | None: ...


class ConsumerFilter(Protocol):
    def wants(self, subject: bytes) -> bool: ...


class ConsumedStream(Protocol):
    @property
    def consumers(self) -> Mapping[str, ConsumerFilter]: ...


class AssignedReplica(Protocol):
    """A replica on this node, as far as admission reads it."""

    @property
    def assignment(self) -> Assignment: ...

    @property
    def stream(self) -> ConsumedStream: ...


@dataclass(slots=True)
class Admission:
    """Built once per node; the outboxes of all streams ask it."""

    node: NodeId
    disk: LogDisk
    writer: LogWriter
    leader: Callable[[int], NodeId | None]
    replica: Callable[[int], AssignedReplica | None]  # the local one of a group
    assignment: Callable[[str, str], Assignment | None]  # by account and stream name

    def disk_refuses(self, group: int) -> bool:
        """Whether to refuse a publish because our own disk is full or has failed. A publish to a
        stream that another node leads is not refused: that node's disk may work."""
        if not self.disk.full and self.writer.failure is None:
            return False
        replica = self.replica(group)
        if replica is None or replica.assignment.config.storage is Storage.MEMORY:
            return False
        return replica.assignment.holders == {self.node} or self.leader(group) == self.node

    def stored_as(self, account: str, stream: str, subject: bytes) -> tuple[bytes, bool]:
        """For message traces: the subject the stream would store the message under, and whether
        it would store nothing because no consumer wants it. Without a local replica the consumers
        are unknown, so the answer is that it is stored."""
        assignment = self.assignment(account, stream)
        if assignment is None:
            return subject, False
        mapping = mapping_of(assignment.config.subject_transform)
        subject = (mapping and mapping(subject)) or subject
        replica = self.replica(assignment.group)
        if replica is None or assignment.config.retention is not Retention.INTEREST:
            return subject, False
        return subject, not any(one.wants(subject) for one in replica.stream.consumers.values())
