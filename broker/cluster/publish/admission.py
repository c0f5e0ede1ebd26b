"""Checks that this node makes before it forwards a publish.

Owns: nothing; it reads the state of the disk, the assignment and the local replica.
May not touch: the replicated checks, which every replica makes at apply.
Spec: docs/decisions/0023-a-full-disk.md."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
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
    """One per node, used by the outboxes of all streams."""

    node: NodeId
    disk: LogDisk
    writer: LogWriter
    full_peers: Collection[int]  # nodes that have announced that their disks are full
    replica: Callable[[int], AssignedReplica | None]  # the local one of a group
    assignment: Callable[[str, str], Assignment | None]  # by account and stream name

    def disk_refuses(self, account: str, stream: str, _group: int) -> bool:
        """Whether to refuse a publish because the replicas whose disks are neither full nor failed
        are no majority. While they are, one of them leads, or soon will."""
        bad = self.disk.full or self.writer.failure is not None
        if not bad and not self.full_peers:
            return False
        assignment = self.assignment(account, stream)
        if assignment is None or assignment.config.storage is Storage.MEMORY:
            return False
        members = assignment.members
        able = sum(
            not bad if member == self.node else member not in self.full_peers for member in members
        )
        return able <= len(members) // 2

    def stored_as(self, account: str, stream: str, subject: bytes) -> tuple[bytes, bool]:
        """For message traces: the subject under which the stream would store the message, and
        whether it would store nothing because no consumer is interested. Without a local replica
        the consumers are unknown, and the message counts as stored."""
        assignment = self.assignment(account, stream)
        if assignment is None:
            return subject, False
        mapping = mapping_of(assignment.config.subject_transform)
        subject = (mapping and mapping(subject)) or subject
        replica = self.replica(assignment.group)
        if replica is None or assignment.config.retention is not Retention.INTEREST:
            return subject, False
        return subject, not any(one.wants(subject) for one in replica.stream.consumers.values())
