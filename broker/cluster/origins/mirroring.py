"""Mirrors copy another stream sequence by sequence; sources merge several streams into one.

Owns: which origins this node reads, for the streams it leads, and how each kind stores a message.
May not touch: connections and retries (origin_reader.py), the stream's state.
Spec: NATS JetStream, mirrors and sources."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import islice

from broker.cluster.origins.origin_reader import (
    DROPPED_HEADERS,
    FilledStream,
    NotTaken,
    OriginAccess,
    OriginReader,
    OriginTarget,
    without_headers,
)
from broker.jetstream.api.info import SourceInfo
from broker.jetstream.commands.publish_entry import mirror_prefix
from broker.jetstream.config.stream_config import StreamConfig, StreamSource
from broker.jetstream.errors import ErrCode
from broker.jetstream.stream.sourcing import (
    SOURCE_HEADER,
    Sourced,
    SourceMapping,
    source_header,
    source_key,
    source_line,
    source_prefix,
)
from broker.store.block.codec import Block, BlockBuilder, append_sourced
from broker.wire import headers as wire_headers

STARTED_PER_TURN = 4  # readers of one stream that start in one turn of the loop
MIRROR = ""  # the key of a stream's mirror among its origins; sources have their own


class Mirror:
    """Sequences and times are those of the origin, so the last stored sequence is the position."""

    wrong_consumer = ErrCode.MIRROR_CONSUMER_REQUIRES_ACK_FC
    taken = 0

    def __init__(self, replica: FilledStream, source: StreamSource) -> None:
        self._replica = replica
        self._mapping = SourceMapping(source)

    def position(self) -> int:
        return self._replica.stream.store.last_seq

    def stored(self, raw: bytes) -> bytes:
        if self._mapping.plain and not _names(raw, DROPPED_HEADERS):
            return raw
        builder, block = BlockBuilder(), Block(raw, verify=False)
        for row in range(block.rows):
            headers, seq = without_headers(block.headers(row), DROPPED_HEADERS), block.seq(row)
            subject = self._mapping(block.subject(row), seed=seq)
            builder.append(subject, headers, block.data(row), time_ns=block.time(row), seq=seq)
        return builder.build(seal=False)

    def propose(self, block: bytes, *, last: int) -> asyncio.Future[object]:
        prefix = mirror_prefix(time_ns=self._replica.stamp())
        return self._replica.propose_raw(prefix + block)

    def check(self, result: object) -> None:
        """A mirror has no limits of its own that could refuse a message."""


class Sourcing:
    """Messages get sequences of this stream; the position in the origin is stored separately."""

    wrong_consumer = ErrCode.SOURCE_CONSUMER_REQUIRES_ACK_FC

    def __init__(self, replica: FilledStream, source: StreamSource) -> None:
        self._replica = replica
        self._source = source
        self._mapping = SourceMapping(source)
        self._line = source_line(source)
        self._proposed = 0

    @property
    def taken(self) -> int:
        return self._replica.stream.source_positions.get(source_key(self._source), 0)

    def position(self) -> int:
        position = self._proposed = self.taken  # called whenever reading starts again
        return position

    def stored(self, raw: bytes) -> bytes:
        builder, block = BlockBuilder(), Block(raw, verify=False)
        dropped = (*DROPPED_HEADERS, SOURCE_HEADER)
        if self._mapping.plain and not _names(raw, dropped):
            append_sourced(builder, block, head=self._line[0], tail=self._line[1])
            return builder.build(seal=False)
        for row in range(block.rows):
            origin, seq = block.subject(row), block.seq(row)
            headers = without_headers(block.headers(row), dropped)
            value = source_header(self._source, seq=seq, subject=origin)
            headers = wire_headers.add(headers, [(SOURCE_HEADER, value)])
            builder.append(self._mapping(origin, seed=seq), headers, block.data(row), seq=seq)
        return builder.build(seal=False)

    def propose(self, block: bytes, *, last: int) -> asyncio.Future[object]:
        prefix = source_prefix(
            key=source_key(self._source), after=self._proposed, time_ns=self._replica.stamp()
        )
        future = self._replica.propose_raw(prefix + block)
        self._proposed = last
        return future

    def check(self, result: object) -> None:
        if isinstance(result, Sourced) and result.refused is not None:
            raise NotTaken(result.refused.description)


@dataclass(slots=True)
class MirrorsAndSources:
    """Starts and stops readers as leadership and configurations change. One per node."""

    access: OriginAccess
    spawn: Callable[[Awaitable[None], str], object]
    _running: dict[int, dict[str, OriginReader]] = field(default_factory=dict)  # by group, key
    _wanted: dict[int, dict[str, StreamSource]] = field(default_factory=dict)  # the same

    def infos(self, group: int) -> dict[StreamSource, SourceInfo]:
        """Infos of the origins that are being read for a stream that this node leads."""
        return {reader.source: reader.info() for reader in self._running.get(group, {}).values()}

    def leadership_changed(self, replica: FilledStream, leads: bool) -> None:  # noqa: FBT001
        self._wanted.pop(replica.group, None)
        for reader in self._running.pop(replica.group, {}).values():
            _cancel(reader)
        if leads:
            self.reconfigured(replica)

    def reconfigured(self, replica: FilledStream) -> None:
        """Read exactly the origins that the configuration names."""
        running = self._running.setdefault(replica.group, {})
        wanted = _origins(replica.stream.config)
        for key, reader in list(running.items()):
            if reader.source != wanted.get(key):
                _cancel(running.pop(key))
        self._wanted[replica.group] = wanted
        missing = iter([key for key in wanted if key not in running])
        for key in islice(missing, STARTED_PER_TURN):
            self._start(replica, key, wanted[key])
        if later := list(missing):
            self.spawn(self._start_later(replica, later, wanted), f"origins of {replica.name}")
        if not wanted:
            del self._running[replica.group], self._wanted[replica.group]

    async def _start_later(
        self, replica: FilledStream, keys: list[str], wanted: dict[str, StreamSource]
    ) -> None:
        """A few per turn of the loop: a stream may have thousands of sources."""
        for at in range(0, len(keys), STARTED_PER_TURN):
            await asyncio.sleep(0)
            if self._wanted.get(replica.group) is not wanted:
                return  # the configuration has changed, or this node no longer leads
            for key in keys[at : at + STARTED_PER_TURN]:
                self._start(replica, key, wanted[key])

    def _start(self, replica: FilledStream, key: str, source: StreamSource) -> None:
        kind = Mirror if key == MIRROR else Sourcing
        target: OriginTarget = kind(replica, source)
        reader = OriginReader(self.access, replica, source, target)
        self._running[replica.group][key] = reader
        name = f"stream {replica.name} reads {source.name}"
        self.spawn(self._owned(reader, replica.group, key, name), name)

    async def _owned(self, reader: OriginReader, group: int, key: str, name: str) -> None:
        """The task of one reader. Cancelling the reader must not look like a failure of a task."""
        if self._running.get(group, {}).get(key) is not reader:
            return  # cancelled before it began
        reader.task = asyncio.create_task(reader.run(), name=name)
        await asyncio.wait([reader.task])
        if not reader.task.cancelled() and (problem := reader.task.exception()) is not None:
            raise problem


def _origins(config: StreamConfig) -> dict[str, StreamSource]:
    found = {source_key(source): source for source in config.sources}
    if config.mirror is not None:
        found[MIRROR] = config.mirror
    return found


def _cancel(reader: OriginReader) -> None:
    if reader.task is not None:
        reader.task.cancel()


def _names(raw: bytes, names: tuple[bytes, ...]) -> bool:
    """Whether a header may have one of these names. May be true because a payload contains it."""
    return any(name in raw for name in names)
