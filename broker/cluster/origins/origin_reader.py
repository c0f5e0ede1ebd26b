"""Reading one origin of a mirror or source: connect, read in batches, propose, retry.

Owns: the connection to the origin, its retries and its statistics.
May not touch: the stream's state. Messages are proposed to the stream's group, so a new leader or a
restarted node needs nothing else: the applied state contains the position to continue from.
The origin is a stream of the same account, or of a *remote* (jetstream.remotes in the
configuration), which `external.api` names as `$JS.<remote>.API`. If there is no such remote,
requests go to that prefix in the account of the stream, where a leaf node, a hub or another account
may answer.
Spec: NATS JetStream, mirrors and sources."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from broker.cluster.origins.origin_connection import OriginConnection
from broker.cluster.origins.origin_errors import (
    SETUP_FAILED,
    OriginLost,
    OriginRefused,
    WrongConsumer,
)
from broker.cluster.origins.origin_login import OriginAddress
from broker.cluster.origins.origin_scan import SCAN_FAILURES, backlog, can_scan, scanned
from broker.cluster.proposals import LostLeadership
from broker.config.options import Remote
from broker.jetstream.api.info import SourceInfo
from broker.jetstream.config.stream_config import StreamConfig, StreamSource
from broker.jetstream.errors import ErrCode, ErrorBody, JetStreamError
from broker.jetstream.stream.sourcing import SourceMapping
from broker.jetstream.strict_json import SEQUENCE_MAX
from broker.server.listeners import internal_client
from broker.server.listeners.internal_client import HasClients
from broker.store.block.codec import Block, BlockBuilder
from broker.store.block.columns import unwritable_subject
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

    @property
    def taken(self) -> int:
        """The position that the info of a source shows; 0 for a mirror."""

    def position(self) -> int:
        """The origin's sequence of the last copied message, 0 before the first."""

    def stored(self, raw: bytes) -> bytes:
        """A block of the origin, with headers and subjects changed as this stream stores them."""

    def propose(self, block: bytes, *, last: int) -> asyncio.Future[object]:
        """`last` is the origin's sequence of the last row."""

    def check(self, result: object) -> None:
        """The result of an applied batch. Raises NotTaken."""


SERVING = LINKS | {SinkKind.SERVICE, SinkKind.SHARED}


@dataclass(slots=True)
class OriginAccess:
    """How origins are reached. A reload may change the remotes: the next connection uses them."""

    remotes: Mapping[str, Remote]
    inside: Callable[[str], Streams]  # a connection to this server, by account
    # Whether a server answers requests on this subject of the account: a leaf node or hub with that
    # domain, or an imported service. A stream that captures the subject does not count.
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
        if _remote_name(api) not in self.remotes and self.answered(account, asked):
            origin = await OriginConnection.over(*self.inside(account), api=api)
            if source.external is not None and source.external.deliver:
                origin.deliver = f"{source.external.deliver}.{secrets.token_hex(8)}"
            return origin
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
    _reached: int = 0  # the last sequence that was read over this connection
    _by_blocks: bool = False  # the last attempt ended while blocks were read
    _origin: OriginConnection | None = None
    _in_flight: deque[asyncio.Future[object]] = field(default_factory=deque)

    def info(self) -> SourceInfo:
        heard = self._origin.heard_s if self._origin is not None else self._heard_s
        transforms = self.source.subject_transforms
        return SourceInfo(
            name=self.source.name,
            external=self.source.external,
            lag=self.lag,
            seq=self.target.taken,
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
                problem = ErrorBody(500, SETUP_FAILED, str(lost) or type(lost).__name__)
            except TimeoutError:
                problem = ErrorBody(500, SETUP_FAILED, "the origin is silent")
            except (ValueError, OverflowError, RecursionError) as wrong:
                text = f"what the origin sent cannot be used: {wrong}"
                problem = ErrorBody(500, SETUP_FAILED, text)
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
            self._known, self._reached = self.target.position(), 0
            if source.consumer is not None:
                durable = source.consumer
                await origin.resume(
                    source.name, durable.name, durable.deliver_subject, settle=self._settle_all
                )
            else:
                await self._copy_blocks(origin)
                await self._consume(origin)
            self.error = None
            while True:
                await self._take_batch(origin)
        finally:
            self._heard_s = origin.heard_s or self._heard_s
            self._origin = None
            origin.close()
            await self._settle()

    def _start(self) -> tuple[int, int]:
        """Where reading begins: a sequence, and if it is not 0, a time instead."""
        if self._known:
            return self._known + 1, 0
        source = self.source
        return source.opt_start_seq or 1, 0 if source.opt_start_seq else source.opt_start_time or 0

    async def _copy_blocks(self, origin: OriginConnection) -> None:
        """Read a long backlog in whole blocks. The rest is read by consumer; if the connection is
        lost meanwhile, the next attempt reads by consumer only."""
        filters = SourceMapping(self.source).filters
        lost_before, self._by_blocks = self._by_blocks, False
        if lost_before or self._start()[1] or not can_scan(origin, filters):
            return
        self._by_blocks = True
        try:
            while plan := await backlog(origin, self.source.name, start=self._start()[0]):
                start, known = max(self._start()[0], plan.first_seq), self._known
                logger.info(
                    "stream %s reads %s in blocks, sequences %d to %d",
                    self.replica.name,
                    self.source.name,
                    start,
                    plan.last_seq,
                )
                async for block in scanned(origin, plan, start=start, filters=filters):
                    self.error = None
                    origin.heard_s = time.monotonic()
                    self.lag = plan.last_seq - block.last_seq
                    fresh = _after(block, start - 1)
                    if fresh:
                        self._check(Block(fresh, verify=False))
                    self._known = max(self._known, block.last_seq)
                    await self._propose(fresh, last=block.last_seq, most=IN_FLIGHT_MAX)
                if self._known == known:
                    break  # no row matches the filters, or the replica lags
        except SCAN_FAILURES as refused:
            logger.info(
                "stream %s reads %s by consumer: %s",
                self.replica.name,
                self.source.name,
                refused,
            )
        self._by_blocks = False
        await self._settle_all()

    async def _consume(self, origin: OriginConnection) -> None:
        """Read through a consumer of our own that starts after the last stored message."""
        start, since_ns = self._start()
        await origin.consume(
            self.source.name,
            start=start,
            start_time_ns=since_ns,
            filters=SourceMapping(self.source).filters,
        )

    async def _take_batch(self, origin: OriginConnection) -> None:
        """Read what is available, at least one message, and propose it as one entry."""
        builder = BlockBuilder()
        self.lag = await origin.take(builder, rows_max=BATCH_ROWS_MAX, bytes_max=BATCH_BYTES_MAX)
        raw, last = builder.build(seal=False), builder.last_seq
        self._check(Block(raw, verify=False))
        if builder.first_seq <= self._known:  # a durable consumer may redeliver stored messages
            raw = _after(Block(raw, verify=False), self._known)
        # If there is nothing more to read, wait for the results of all proposals.
        await self._propose(raw, last=last, most=IN_FLIGHT_MAX if origin.buffered() else 1)

    def _check(self, block: Block) -> None:
        """Validate a block: the origin may be run by somebody else and is not trusted. Raises
        OriginLost."""
        if not block.rows:
            return
        if not self._reached < block.first_seq <= block.last_seq <= SEQUENCE_MAX:
            raise OriginLost(
                f"the origin sent sequences {block.first_seq} to {block.last_seq} "
                f"after {self._reached}"
            )
        subject = unwritable_subject(block)
        if subject is not None:
            raise OriginLost(f"the origin sent the subject {subject[:100]!r}")
        self._reached = block.last_seq

    async def _propose(self, raw: bytes, *, last: int, most: int) -> None:
        """Propose the block, then wait until fewer than `most` proposals are in flight."""
        if raw:
            self._in_flight.append(self.target.propose(self.target.stored(raw), last=last))
        while len(self._in_flight) >= most:
            self.target.check(await self._in_flight.popleft())

    async def _settle_all(self) -> None:
        """Wait until all that was read is stored. Raises NotTaken."""
        while self._in_flight:
            self.target.check(await self._in_flight.popleft())

    async def _settle(self) -> None:
        """Wait for proposals in flight, so that the applied state contains the position."""
        while self._in_flight:
            await self._in_flight.popleft()


def _after(block: Block, known: int) -> bytes:
    """The rows of the block above a sequence; b"" if there is none."""
    first = block.first_at_or_after(known + 1)
    if not first:
        return bytes(block.raw)
    if first == block.rows:
        return b""
    builder = BlockBuilder()
    builder.append_block(block, skip=set(range(first)))
    return builder.build(seal=False)


def without_headers(headers: bytes, dropped: tuple[bytes, ...]) -> bytes:
    """Remove the headers whose names start with one of `dropped`: they applied to the origin."""
    if not any(name in headers for name in dropped):
        return headers
    pairs = [pair for pair in wire_headers.parse(headers) if not pair[0].startswith(dropped)]
    return wire_headers.build(b"NATS/1.0", pairs) if pairs else b""
