"""A replica of a stream, as checks see it.

Owns: the Protocol.
May not touch: replicas; checks only read them."""

from __future__ import annotations

from typing import Protocol

from broker.cluster.replica.leadership import Leadership
from broker.jetstream.stream.stream import Stream
from raft import GroupId


class SeenReplica(Protocol):
    """broker.cluster.replica.replica.Replica, as far as checks read it."""

    @property
    def group(self) -> GroupId: ...
    @property
    def stream(self) -> Stream: ...
    @property
    def is_leading(self) -> bool: ...
    @property
    def leading(self) -> Leadership | None: ...
    @property
    def term(self) -> int: ...
