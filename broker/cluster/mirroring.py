"""Mirrors: a stream that copies another one, sequence by sequence.

Owns: one follower per mirror stream this node leads: its connection to the origin, its progress.
May not touch: the stream's state; what it reads is proposed to the stream's group, so replicas
and restarts need nothing else: the last stored sequence is where to go on.
The origin is a stream of the same account, or of a *remote* (jetstream.remotes in the
configuration): `external.api` names it as `$JS.<remote>.API`.
Spec: JetStream sheet 8; DESIGN section 8."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.cluster.origin import (
    Origin,
    OriginAddress,
    OriginLost,
    OriginMessage,
    OriginRefused,
)
from broker.cluster.waiting import LostLeadership
from broker.jetstream import commands
from broker.jetstream.errors import ErrorBody
from broker.jetstream.info import SourceInfo
from broker.jetstream.stream_config import StreamSource
from broker.store.block import BlockBuilder
from broker.wire import headers as wire_headers
from raft import NotLeader, RaftError

if TYPE_CHECKING:
    from broker.cluster.node import JetStreamNode
    from broker.cluster.replica import Replica

logger = logging.getLogger("jetraft.cluster")

BATCH_ROWS_MAX = 2048
BATCH_BYTES_MAX = 1 << 20
IN_FLIGHT_MAX = 4
RETRY_FIRST_S = 0.2
RETRY_LAST_S = 10.0
DROPPED_HEADERS = (b"Nats-Expected-", b"Nats-Batch-")


class NoSuchRemote(Exception):
    """The configuration of this server names no such remote."""


@dataclass(slots=True)
class Mirror:
    """Follows one origin while this node leads the mirror."""

    node: JetStreamNode
    replica: Replica
    task: asyncio.Task[None] | None = None
    error: str = ""
    lag: int = 0
    last_heard_s: float = 0.0
    _in_flight: deque[asyncio.Future[object]] = field(default_factory=deque)

    def info(self) -> SourceInfo:
        source = self._source()
        active = int((time.monotonic() - self.last_heard_s) * 1e9) if self.last_heard_s else -1
        return SourceInfo(
            name=source.name,
            external=source.external,
            lag=self.lag,
            active=active,
            error=ErrorBody(500, 10029, self.error) if self.error else None,
            filter_subject=source.filter_subject,
        )

    async def run(self) -> None:
        """Follow until cancelled, or until leadership is lost."""
        wait = RETRY_FIRST_S
        while True:
            before = self.replica.stream.store.last_seq
            try:
                await self._follow()
            except (NotLeader, LostLeadership):
                return
            except (OriginLost, OriginRefused, NoSuchRemote, OSError, RaftError) as problem:
                reason = str(problem)
            except TimeoutError:
                reason = "the origin is silent"
            if reason != self.error:
                logger.warning("mirror %s: %s", self.replica.name, reason)
            self.error = reason
            progressed = self.replica.stream.store.last_seq > before
            wait = RETRY_FIRST_S if progressed else min(wait * 2, RETRY_LAST_S)
            await asyncio.sleep(wait)

    async def _follow(self) -> None:
        source = self._source()
        origin = await Origin.connect(self._address(source))
        try:
            start = self.replica.stream.store.last_seq + 1
            if start == 1 and source.opt_start_seq:
                start = source.opt_start_seq
            await origin.consume(source.name, start=start, filter_subject=source.filter_subject)
            self.error = ""
            self.last_heard_s = time.monotonic()
            while True:
                await self._take_batch(origin)
        finally:
            origin.close()
            await self._settle()

    async def _take_batch(self, origin: Origin) -> None:
        """Read what is there, at least one message, and propose it as one entry."""
        builder = BlockBuilder()
        message = await origin.next()
        _append(builder, message)
        while (
            origin.buffered() and builder.rows < BATCH_ROWS_MAX and builder.nbytes < BATCH_BYTES_MAX
        ):
            message = await origin.next()
            _append(builder, message)
        self.last_heard_s = time.monotonic()
        self.lag = message.pending
        prefix = commands.mirror_prefix(time_ns=self.replica.stamp())
        self._in_flight.append(self.replica.propose_raw(prefix + builder.build(seal=False)))
        while len(self._in_flight) >= IN_FLIGHT_MAX:
            await self._in_flight.popleft()

    async def _settle(self) -> None:
        """Before the last stored sequence may be trusted as the place to go on from."""
        while self._in_flight:
            await self._in_flight.popleft()

    def _source(self) -> StreamSource:
        source = self.replica.stream.config.mirror
        assert source is not None, "only mirrors are followed"
        return source

    def _address(self, source: StreamSource) -> OriginAddress:
        if source.external is None or not source.external.api:
            return self._loopback()
        tokens = source.external.api.split(".")
        name = tokens[1] if len(tokens) == 3 and tokens[0] == "$JS" else source.external.api
        remote = self.node.options.remotes.get(name)
        if remote is None:
            raise NoSuchRemote(f'no remote "{name}" is configured (jetstream {{ remotes }})')
        api = f"$JS.{remote.domain}.API" if remote.domain else "$JS.API"
        return OriginAddress(remote.urls, remote.user, remote.password, remote.token, api)

    def _loopback(self) -> OriginAddress:
        """A stream of our own cluster: read it through our own client port."""
        auth = self.node.server.options.authorization
        host = self.node.client_address(self.node.node)
        scheme = "tls" if self.node.server.options.tls is not None else "nats"
        user, password = auth.user, auth.password
        if not user and auth.users:
            user, password = auth.users[0].name, auth.users[0].password
        return OriginAddress(
            (f"{scheme}://{host}",), user, password, auth.token, trust_any_certificate=True
        )


@dataclass(slots=True)
class Mirrors:
    """Starts and ends followers as leaderships come and go."""

    node: JetStreamNode

    def start(self) -> None:
        self.node.on_replica_leads.append(self._leadership)

    def _leadership(self, replica: Replica, leads: bool) -> None:  # noqa: FBT001
        running = self.node.mirrors.pop(replica.group, None)
        if running is not None and running.task is not None:
            running.task.cancel()
        if leads and replica.stream.config.mirror is not None:
            mirror = Mirror(self.node, replica)
            self.node.mirrors[replica.group] = mirror
            self.node.spawn(self._owned(mirror), f"mirror {replica.name}")

    async def _owned(self, mirror: Mirror) -> None:
        """Cancelling one mirror must not look like a failure of the server's task."""
        mirror.task = asyncio.create_task(mirror.run(), name=f"mirror {mirror.replica.name}")
        await asyncio.wait([mirror.task])
        if not mirror.task.cancelled() and (problem := mirror.task.exception()) is not None:
            raise problem


def _append(builder: BlockBuilder, message: OriginMessage) -> None:
    headers = message.headers
    if any(name in headers for name in DROPPED_HEADERS):
        pairs = [p for p in wire_headers.parse(headers) if not p[0].startswith(DROPPED_HEADERS)]
        headers = wire_headers.build(b"NATS/1.0", pairs) if pairs else b""
    builder.append(message.subject, headers, message.data, time_ns=message.time_ns, seq=message.seq)
