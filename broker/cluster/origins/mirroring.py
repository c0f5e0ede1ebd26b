"""Mirrors copy another stream sequence by sequence; sources bring several into one.

Owns: the two kinds of followers, and which of them run on this node.
May not touch: connections and retries (following.py), the stream's state.
Spec: JetStream sheet 8.2, 8.4."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.cluster.origins.origin_connection import OriginMessage
from broker.cluster.origins.origin_reader import (
    DROPPED_HEADERS,
    NotTaken,
    OriginReader,
    without_headers,
)
from broker.jetstream.commands.publish_entry import mirror_prefix
from broker.jetstream.config.stream_config import StreamConfig, StreamSource
from broker.jetstream.errors import ErrCode
from broker.jetstream.stream.sourcing import (
    SOURCE_HEADER,
    Sourced,
    source_header,
    source_key,
    source_prefix,
)
from broker.store.block.block import BlockBuilder
from broker.wire import headers as wire_headers

if TYPE_CHECKING:
    from broker.cluster.node import JetStreamNode
    from broker.cluster.replica.replica import Replica

MIRROR = ""  # the key of a stream's mirror among its followers; sources have theirs


class Mirror(OriginReader):
    """Sequences and times are the origin's: the last stored sequence is the position."""

    __slots__ = ()

    @property
    def wrong_consumer(self) -> ErrCode:
        return ErrCode.MIRROR_CONSUMER_REQUIRES_ACK_FC

    def position(self) -> int:
        return self.replica.stream.store.last_seq

    def append(self, builder: BlockBuilder, message: OriginMessage) -> None:
        headers = without_headers(message.headers, DROPPED_HEADERS)
        subject = self.mapped(message)
        builder.append(subject, headers, message.data, time_ns=message.time_ns, seq=message.seq)

    def propose(self, block: bytes, *, last: int) -> asyncio.Future[object]:
        prefix = mirror_prefix(time_ns=self.replica.stamp())
        return self.replica.propose_raw(prefix + block)


class Sourcing(OriginReader):
    """Messages get sequences of ours; the position is kept beside them."""

    __slots__ = ("_proposed",)

    @property
    def wrong_consumer(self) -> ErrCode:
        return ErrCode.SOURCE_CONSUMER_REQUIRES_ACK_FC

    def position(self) -> int:
        position = self.replica.stream.source_positions.get(source_key(self.source), 0)
        self._proposed = position  # asked whenever reading begins anew
        return position

    def append(self, builder: BlockBuilder, message: OriginMessage) -> None:
        headers = without_headers(message.headers, (*DROPPED_HEADERS, SOURCE_HEADER))
        value = source_header(self.source, seq=message.seq, subject=message.subject)
        headers = wire_headers.add(headers, [(SOURCE_HEADER, value)])
        builder.append(self.mapped(message), headers, message.data, seq=message.seq)

    def propose(self, block: bytes, *, last: int) -> asyncio.Future[object]:
        prefix = source_prefix(
            key=source_key(self.source), after=self._proposed, time_ns=self.replica.stamp()
        )
        future = self.replica.propose_raw(prefix + block)
        self._proposed = last
        return future

    def check(self, result: object) -> None:
        if isinstance(result, Sourced) and result.refused is not None:
            raise NotTaken(result.refused.description)


@dataclass(slots=True)
class Followers:
    """Starts and ends followers as leaderships come and go, and configurations change."""

    node: JetStreamNode

    def start(self) -> None:
        self.node.on_replica_leads.append(self._leadership)
        self.node.on_reconfigured.append(self._reconfigured)

    def _leadership(self, replica: Replica, leads: bool) -> None:  # noqa: FBT001
        for follower in self.node.followers.pop(replica.group, {}).values():
            _cancel(follower)
        if leads:
            self._reconfigured(replica)

    def _reconfigured(self, replica: Replica) -> None:
        """Have exactly the followers the configuration asks for."""
        running = self.node.followers.setdefault(replica.group, {})
        wanted = _origins(replica.stream.config)
        for key, follower in list(running.items()):
            if follower.source != wanted.get(key):
                _cancel(running.pop(key))
        for key, source in wanted.items():
            if key not in running:
                kind = Mirror if key == MIRROR else Sourcing
                follower = running[key] = kind(self.node, replica, source)
                name = f"stream {replica.name} follows {source.name}"
                self.node.spawn(self._owned(follower, name), name)
        if not running:
            del self.node.followers[replica.group]

    async def _owned(self, follower: OriginReader, name: str) -> None:
        """Cancelling one follower must not look like a failure of the server's task."""
        follower.task = asyncio.create_task(follower.run(), name=name)
        await asyncio.wait([follower.task])
        if not follower.task.cancelled() and (problem := follower.task.exception()) is not None:
            raise problem


def _origins(config: StreamConfig) -> dict[str, StreamSource]:
    found = {source_key(source): source for source in config.sources}
    if config.mirror is not None:
        found[MIRROR] = config.mirror
    return found


def _cancel(follower: OriginReader) -> None:
    if follower.task is not None:
        follower.task.cancel()
