"""Following an origin: what mirrors and sources have in common.

Owns: one follower per origin of a stream this node leads: its connection, its retries, its numbers.
May not touch: the stream's state; what is read is proposed to the stream's group, so replicas and
restarts need nothing else: the applied state says where to go on.
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

from broker.cluster.origins.origin_connection import (
    SETUP_FAILED,
    OriginAddress,
    OriginConnection,
    OriginLost,
    OriginMessage,
    OriginRefused,
    WrongConsumer,
)
from broker.cluster.proposals import LostLeadership
from broker.jetstream.api.info import SourceInfo
from broker.jetstream.config.stream_config import StreamSource
from broker.jetstream.errors import ErrCode, ErrorBody, JetStreamError
from broker.jetstream.stream.sourcing import SourceMapping
from broker.server.listeners import internal_client as inside
from broker.store.block.block import BlockBuilder
from broker.wire import headers as wire_headers
from raft import NotLeader, RaftError

if TYPE_CHECKING:
    from broker.cluster.node import JetStreamNode
    from broker.cluster.replica.replica import Replica

logger = logging.getLogger("jetraft.cluster")

BATCH_ROWS_MAX = 2048
BATCH_BYTES_MAX = 1 << 20
IN_FLIGHT_MAX = 4
RETRY_FIRST_S = 0.2
RETRY_LAST_S = 10.0
DROPPED_HEADERS = (b"Nats-Expected-", b"Nats-Batch-")


class NoSuchRemote(Exception):
    """The configuration of this server names no such remote."""


class NotTaken(Exception):
    """The stream has no room for what its origin has."""


@dataclass(slots=True)
class OriginReader:
    """Follows one origin while this node leads the stream. See Mirror and Sourcing."""

    node: JetStreamNode
    replica: Replica
    source: StreamSource
    mapping: SourceMapping = field(init=False)
    task: asyncio.Task[None] | None = None
    error: ErrorBody | None = None
    lag: int = 0
    _heard_s: float = 0.0
    _known: int = 0  # the position when reading began
    _origin: OriginConnection | None = None
    _in_flight: deque[asyncio.Future[object]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.mapping = SourceMapping(self.source)

    # -- what the two kinds do in their own way -------------------------------------------------

    def position(self) -> int:
        """The last sequence of the origin that is in the stream, 0 before the first."""
        raise NotImplementedError

    def append(self, builder: BlockBuilder, message: OriginMessage) -> None:
        raise NotImplementedError

    def propose(self, block: bytes, *, last: int) -> asyncio.Future[object]:
        """`last` is the origin's sequence of the last row."""
        raise NotImplementedError

    @property
    def wrong_consumer(self) -> ErrCode:
        """What a consumer that cannot be read through is called."""
        raise NotImplementedError

    def check(self, result: object) -> None:
        """Of an applied batch. Raises NotTaken."""

    # -- the common way -------------------------------------------------------------------------

    def info(self) -> SourceInfo:
        heard = self._origin.heard_s if self._origin is not None else self._heard_s
        transforms = self.source.subject_transforms
        return SourceInfo(
            name=self.source.name,
            external=self.source.external,
            lag=self.lag,
            active=int((time.monotonic() - heard) * 1e9) if heard else -1,
            error=self.error,
            filter_subject=self.source.filter_subject,
            subject_transforms=transforms,
        )

    async def run(self) -> None:
        """Follow until cancelled, or until leadership is lost."""
        wait = RETRY_FIRST_S
        while True:
            before = self.position()
            try:
                await self._follow()
            except (NotLeader, LostLeadership):
                return
            except OriginRefused as refused:
                problem = ErrorBody(refused.code, refused.err_code, str(refused))
            except WrongConsumer:
                problem = JetStreamError(self.wrong_consumer).body()
            except (OriginLost, NoSuchRemote, NotTaken, OSError, RaftError) as lost:
                problem = ErrorBody(500, SETUP_FAILED, str(lost))
            except TimeoutError:
                problem = ErrorBody(500, SETUP_FAILED, "the origin is silent")
            if problem != self.error:
                logger.warning(
                    "stream %s, origin %s: %s",
                    self.replica.name,
                    self.source.name,
                    problem.description,
                )
            self.error = problem
            progressed = self.position() > before
            wait = RETRY_FIRST_S if progressed else min(wait * 2, RETRY_LAST_S)
            await asyncio.sleep(wait)

    async def _follow(self) -> None:
        source = self.source
        origin = self._origin = await self._connect()
        try:
            self._known = self.position()
            if source.consumer is not None:
                durable = source.consumer
                await origin.resume(
                    source.name, durable.name, durable.deliver_subject, settle=self._settle_all
                )
            else:
                await self._consume(origin)
            self.error = None
            while True:
                await self._take_batch(origin)
        finally:
            self._heard_s = origin.heard_s or self._heard_s
            self._origin = None
            origin.close()
            await self._settle()

    async def _consume(self, origin: OriginConnection) -> None:
        """Through a consumer of our own, that begins behind what we know."""
        source = self.source
        start, since_ns = self._known + 1, 0
        if start == 1:
            start, since_ns = source.opt_start_seq or 1, source.opt_start_time or 0
        await origin.consume(
            source.name,
            start=start,
            start_time_ns=0 if source.opt_start_seq else since_ns,
            filters=self.mapping.filters,
        )

    async def _take_batch(self, origin: OriginConnection) -> None:
        """Read what is there, at least one message, and propose it as one entry."""
        builder = BlockBuilder()
        message = await origin.next()
        self._take(builder, message)
        while (
            origin.buffered() and builder.rows < BATCH_ROWS_MAX and builder.nbytes < BATCH_BYTES_MAX
        ):
            message = await origin.next()
            self._take(builder, message)
        self.lag = message.pending
        if not builder.rows:
            return
        self._in_flight.append(self.propose(builder.build(seal=False), last=message.seq))
        # With nothing at hand to read, what became of the proposed is the next thing to know.
        most = IN_FLIGHT_MAX if origin.buffered() else 1
        while len(self._in_flight) >= most:
            self.check(await self._in_flight.popleft())

    def _take(self, builder: BlockBuilder, message: OriginMessage) -> None:
        """A durable consumer may go back behind what we have."""
        if message.seq > self._known:
            self.append(builder, message)

    async def _settle_all(self) -> None:
        """Until all that was read is stored. Raises NotTaken."""
        while self._in_flight:
            self.check(await self._in_flight.popleft())

    async def _settle(self) -> None:
        """Before the applied state may be trusted as the place to go on from."""
        while self._in_flight:
            await self._in_flight.popleft()

    def mapped(self, message: OriginMessage) -> bytes:
        return self.mapping(message.subject, seed=message.seq)

    # -- where the origin is --------------------------------------------------------------------

    async def _connect(self) -> OriginConnection:
        external = self.source.external
        if external is not None and external.api:
            return await OriginConnection.connect(self._address(external.api))
        account = self.replica.account.name
        return await OriginConnection.over(await inside.connect(self.node.server, account))

    def _address(self, api: str) -> OriginAddress:
        tokens = api.split(".")
        name = tokens[1] if len(tokens) == 3 and tokens[0] == "$JS" else api
        remote = self.node.options.remotes.get(name)
        if remote is None:
            raise NoSuchRemote(f'no remote "{name}" is configured (jetstream {{ remotes }})')
        api = f"$JS.{remote.domain}.API" if remote.domain else "$JS.API"
        return OriginAddress(remote.urls, remote.user, remote.password, remote.token, api)


def without_headers(headers: bytes, dropped: tuple[bytes, ...]) -> bytes:
    """Without those whose names begin like this: they were about the origin."""
    if not any(name in headers for name in dropped):
        return headers
    pairs = [pair for pair in wire_headers.parse(headers) if not pair[0].startswith(dropped)]
    return wire_headers.build(b"NATS/1.0", pairs) if pairs else b""
