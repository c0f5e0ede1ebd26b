"""Reading one origin of a mirror or source: connect, read in batches, propose, retry.

Owns: the connection to the origin, its retries and its statistics.
May not touch: the stream's state. Messages are proposed to the stream's group, so a new leader or a
restarted node needs nothing else: the applied state contains the position to continue from.
The origin is a stream of the same account, or of a *remote* (jetstream.remotes in the
configuration): `external.api` names it as `$JS.<remote>.API`. Without such a remote, the API is
asked under that prefix in the account of the stream: a leaf node, a hub or another account may
serve it.
Spec: NATS JetStream, mirrors and sources."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from broker.cluster.origins.origin_connection import (
    SETUP_FAILED,
    OriginConnection,
    OriginLost,
    OriginMessage,
    OriginRefused,
    WrongConsumer,
)
from broker.cluster.origins.origin_login import OriginAddress
from broker.cluster.proposals import LostLeadership
from broker.config.options import Remote
from broker.jetstream.api.info import SourceInfo
from broker.jetstream.config.stream_config import StreamConfig, StreamSource
from broker.jetstream.errors import ErrCode, ErrorBody, JetStreamError
from broker.jetstream.stream.sourcing import SourceMapping
from broker.server.listeners import internal_client
from broker.server.listeners.internal_client import HasClients
from broker.store.block.codec import BlockBuilder
from broker.subjects import LINKS, SinkKind
from broker.wire import headers as wire_headers
from raft import GroupId, NotLeader, RaftError

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.store.messages import MessageStore

logger = logging.getLogger("jetraft.cluster")

BATCH_ROWS_MAX = 2048
BATCH_BYTES_MAX = 1 << 20
IN_FLIGHT_MAX = 4
RETRY_FIRST_S = 0.2
RETRY_LAST_S = 10.0
DROPPED_HEADERS = (b"Nats-Expected-", b"Nats-Batch-")

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class NoSuchRemote(Exception):
    """The configuration of this server has no such remote."""


class NotTaken(Exception):
    """The stream refused messages of its origin, for example because it is full."""


class FilledState(Protocol):
    """The applied state of the stream that is filled."""

    @property
    def config(self) -> StreamConfig: ...
    @property
    def store(self) -> MessageStore: ...
    @property
    def source_positions(self) -> Mapping[str, int]: ...


class FilledStream(Protocol):
    """The replica of the stream that is filled, while this node leads it."""

    @property
    def group(self) -> GroupId: ...
    @property
    def name(self) -> str: ...
    @property
    def account(self) -> Account: ...
    @property
    def stream(self) -> FilledState: ...
    def stamp(self) -> int: ...
    def propose_raw(self, data: bytes) -> asyncio.Future[object]: ...


class OriginTarget(Protocol):
    """How messages of an origin are stored: see Mirror and Sourcing (mirroring.py)."""

    @property
    def wrong_consumer(self) -> ErrCode:
        """The error for a durable consumer that does not acknowledge by flow control."""

    def position(self) -> int:
        """The last sequence of the origin that is in the stream, 0 before the first."""

    def append(self, builder: BlockBuilder, message: OriginMessage) -> None: ...

    def propose(self, block: bytes, *, last: int) -> asyncio.Future[object]:
        """`last` is the origin's sequence of the last row."""

    def check(self, result: object) -> None:
        """The result of an applied batch. Raises NotTaken."""


SERVING = LINKS | {SinkKind.SERVICE}


@dataclass(slots=True)
class OriginAccess:
    """How origins are reached. A reload may change the remotes: the next connection uses them."""

    remotes: Mapping[str, Remote]
    inside: Callable[[str], Streams]  # a connection to this server, by account
    # Whether a server answers requests on this subject of the account: a leaf node or hub that has
    # the domain, or an imported service. A stream that would store the request does not count.
    answered: Callable[[str, bytes], bool] = lambda _account, _subject: False

    @classmethod
    def inside_of(cls, server: HasClients, remotes: Mapping[str, Remote]) -> OriginAccess:
        context = server.clients

        def answered(account: str, subject: bytes) -> bool:
            found = context.account(account).subs.match(subject).plain
            return any(sub.sink.kind in SERVING for sub in found)

        return cls(remotes, partial(internal_client.connect, server), answered)

    async def connect(self, source: StreamSource, account: str) -> OriginConnection:
        api = "" if source.external is None else source.external.api
        if not api:
            return await OriginConnection.over(*self.inside(account))
        asked = f"{api}.CONSUMER.CREATE.{source.name}".encode()
        unnamed = api.startswith("$JS.") and _remote_name(api) not in self.remotes
        if unnamed and self.answered(account, asked):
            return await OriginConnection.over(*self.inside(account), api=api)
        return await OriginConnection.connect(self._address(api))

    def _address(self, api: str) -> OriginAddress:
        name = _remote_name(api)
        remote = self.remotes.get(name)
        if remote is None:
            raise NoSuchRemote(f'no remote "{name}" is configured (jetstream {{ remotes }})')
        api = f"$JS.{remote.domain}.API" if remote.domain else "$JS.API"
        return OriginAddress(
            remote.urls,
            remote.user,
            remote.password,
            remote.token,
            api,
            creds=remote.creds,
            nkey=remote.nkey,
            tls=remote.tls,
        )


def _remote_name(api: str) -> str:
    tokens = api.split(".")
    return tokens[1] if len(tokens) == 3 and tokens[0] == "$JS" else api


@dataclass(slots=True)
class OriginReader:
    """Reads one origin while this node leads the stream."""

    access: OriginAccess
    replica: FilledStream
    source: StreamSource
    target: OriginTarget
    task: asyncio.Task[None] | None = None
    error: ErrorBody | None = None
    lag: int = 0
    _heard_s: float = 0.0
    _known: int = 0  # the position when reading began
    _origin: OriginConnection | None = None
    _in_flight: deque[asyncio.Future[object]] = field(default_factory=deque)

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
        """Read until cancelled, or until leadership is lost."""
        wait = RETRY_FIRST_S
        while True:
            before = self.target.position()
            try:
                await self._read()
            except (NotLeader, LostLeadership):
                return
            except OriginRefused as refused:
                problem = ErrorBody(refused.code, refused.err_code, str(refused))
            except WrongConsumer:
                problem = JetStreamError(self.target.wrong_consumer).body()
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
            progressed = self.target.position() > before
            wait = RETRY_FIRST_S if progressed else min(wait * 2, RETRY_LAST_S)
            await asyncio.sleep(wait)

    async def _read(self) -> None:
        source = self.source
        origin = self._origin = await self.access.connect(source, self.replica.account.name)
        try:
            self._known = self.target.position()
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
        """Read through a consumer of our own that starts after the last stored message."""
        source = self.source
        start, since_ns = self._known + 1, 0
        if start == 1:
            start, since_ns = source.opt_start_seq or 1, source.opt_start_time or 0
        await origin.consume(
            source.name,
            start=start,
            start_time_ns=0 if source.opt_start_seq else since_ns,
            filters=SourceMapping(source).filters,
        )

    async def _take_batch(self, origin: OriginConnection) -> None:
        """Read what is available, at least one message, and propose it as one entry."""
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
        self._in_flight.append(self.target.propose(builder.build(seal=False), last=message.seq))
        # With nothing more to read, wait for the result of what was proposed.
        most = IN_FLIGHT_MAX if origin.buffered() else 1
        while len(self._in_flight) >= most:
            self.target.check(await self._in_flight.popleft())

    def _take(self, builder: BlockBuilder, message: OriginMessage) -> None:
        """A durable consumer may deliver messages that are stored already."""
        if message.seq > self._known:
            self.target.append(builder, message)

    async def _settle_all(self) -> None:
        """Wait until all that was read is stored. Raises NotTaken."""
        while self._in_flight:
            self.target.check(await self._in_flight.popleft())

    async def _settle(self) -> None:
        """Wait for proposals in flight, so that the applied state says where to continue."""
        while self._in_flight:
            await self._in_flight.popleft()


def without_headers(headers: bytes, dropped: tuple[bytes, ...]) -> bytes:
    """Remove the headers whose names start with one of `dropped`: they applied to the origin."""
    if not any(name in headers for name in dropped):
        return headers
    pairs = [pair for pair in wire_headers.parse(headers) if not pair[0].startswith(dropped)]
    return wire_headers.build(b"NATS/1.0", pairs) if pairs else b""
