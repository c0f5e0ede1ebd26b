"""Restore: streams created from an archive that a client sends.

Owns: the transfer from one client per restore, the spooled bytes, and the stream until it is
complete: until then it captures no subjects, and it is removed if the restore fails.
May not touch: the layout of the archive (broker/jetstream/stream/archive.py).
The messages go through the stream's own log, with their old sequences and times, so that every
replica has them. A crash during the restore loses the restore and nothing else.
Bounds: an archive may be small and its content large, so parts are inflated one at a time, on a
thread, by at most one restore per account and two per node; the others wait. An account cannot use
all restores of a node, and a client that sends without waiting for answers is refused.
Spec: NATS JetStream API, STREAM.RESTORE."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from broker.cluster.api.leader_calls import LeaderCalls
from broker.cluster.meta.assignments import (
    Assignment,
    AssignmentTable,
    AssignStream,
    ReconfigureStream,
    RemoveStream,
    StreamCommand,
)
from broker.cluster.meta.meta_requests import MetaRequests
from broker.cluster.observe.advisories import Advisories, Client
from broker.cluster.peers.rpc import CallFailed
from broker.jetstream.api import advisories
from broker.jetstream.api.info import StreamInfo
from broker.jetstream.api.responses import DidCreate, RestoreReady, encode_error, encode_response
from broker.jetstream.api.stream_access import SERVED
from broker.jetstream.api.subjects import ApiKind
from broker.jetstream.commands.stream_commands import LoadState
from broker.jetstream.config import StreamConfig
from broker.jetstream.config.consumer_rules import consumer_config_steps
from broker.jetstream.config.limits import AccountView
from broker.jetstream.config.names import NUID_RANDOM_BYTES, nuid, valid_asset_name
from broker.jetstream.consumer.consumer import BadImage, check_image
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.stream.archive import (
    ArchiveReader,
    BadArchive,
    Head,
    Part,
    check_block,
    read_head,
)
from broker.server.routing.internal_subscription import InternalSubscription
from broker.store.block.codec import BlockDamaged
from broker.subjects import finish
from raft.store.cipher import ScratchFile, StoreCipher

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.server.routing.router import Router

RESTORES_MAX = 16  # concurrent, per node
RESTORES_PER_ACCOUNT_MAX = 12
INFLATING_MAX = 2  # restores that have a part in memory
UNSPOOLED_BYTES_MAX = 32 << 20  # per restore: more than the nats tool has in flight
STALLED_AFTER_S = 5.0
READ_BYTES = 1 << 20
LOAD_WITHIN_S = 30.0  # for one block, including leader changes
STATE_ITEMS_MAX = 10_000  # message ids per command

_encode = msgspec.msgpack.Encoder().encode

StreamInfoOf = Callable[["Account", Assignment], Awaitable[StreamInfo]]
Reconfigure = Callable[[Assignment], Awaitable[None]]
# Proposes a command once the subjects of the configuration are free.
Change = Callable[[StreamConfig, Callable[[int], StreamCommand]], Awaitable[Assignment]]


@dataclass(slots=True)
class Restores:
    """The restores clients send to this node."""

    directory: Path  # for the spooled bytes
    router: Router
    assignments: AssignmentTable
    meta_requests: MetaRequests
    calls: LeaderCalls
    advisories: Advisories
    spawn: Callable[[Awaitable[None], str], object]
    cipher: StoreCipher | None = None  # of the data directory
    running: Counter[str] = field(default_factory=Counter)  # by account
    _inflating: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(INFLATING_MAX))
    _turn: defaultdict[str, asyncio.Lock] = field(  # by account, for those that are restoring
        default_factory=lambda: defaultdict(asyncio.Lock)
    )

    def begin(
        self,
        account: Account,
        client: Client,
        config: StreamConfig,
        peers: list[int],
        *,
        info: StreamInfoOf,
        reconfigure: Reconfigure,
        change: Change,
    ) -> bytes:
        """`config` has been checked. The answer names the subject to send the archive to."""
        if self.assignments.get(account.name, config.name) is not None:
            raise JetStreamError(ErrCode.STREAM_NAME_EXIST_RESTORE_FAILED)
        taken = self.running[account.name]
        if taken >= RESTORES_PER_ACCOUNT_MAX or self.running.total() >= RESTORES_MAX:
            raise JetStreamError.of(ErrCode.STREAM_RESTORE, err="too many restores in progress")
        restore = Restore(self, account, client, config, peers, info, reconfigure, change)
        self.running[account.name] += 1
        self.advisories.send(account, advisories.restore_create(config.name, client))
        self.spawn(self._owned(restore), f"restore {config.name}")
        answer = RestoreReady(deliver_subject=restore.subject)
        return encode_response(ApiKind.STREAM_RESTORE, answer)

    @asynccontextmanager
    async def inflating(self, account: str) -> AsyncIterator[None]:
        """Held while a part of an archive is in memory."""
        async with self._turn[account], self._inflating:
            yield

    async def _owned(self, restore: Restore) -> None:
        started = self.advisories.now_ns()
        try:
            await restore.run()
        finally:
            self.running -= Counter({restore.account.name: 1})  # without zeros
            if restore.account.name not in self.running:
                self._turn.pop(restore.account.name, None)
        event = advisories.restore_complete(
            restore.config.name,
            restore.client,
            start_ns=started,
            end_ns=self.advisories.now_ns(),
            size=restore.received_bytes,
        )
        self.advisories.send(restore.account, event)


@dataclass(slots=True)
class Restore:
    """One restore from its first chunk to its answer."""

    owner: Restores
    account: Account
    client: Client
    config: StreamConfig
    peers: list[int]
    info: StreamInfoOf
    reconfigure: Reconfigure
    change: Change
    received_bytes: int = 0
    subject: str = field(init=False)
    _inbox: InternalSubscription = field(init=False)
    # Bounded by the client's window: a chunk waits here until it is answered.
    _chunks: asyncio.Queue[tuple[bytes, bytes]] = field(default_factory=asyncio.Queue)
    _unspooled_bytes: int = 0

    def __post_init__(self) -> None:
        token = nuid(secrets.token_bytes(NUID_RANDOM_BYTES))
        self.subject = f"$JS.SNAPSHOT.RESTORE.{self.config.name}.{token}"
        self._inbox = InternalSubscription(
            self.owner.router, self.account, self.subject.encode(), self._received
        )

    def _received(self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes) -> None:
        self._unspooled_bytes += len(payload)
        if self._unspooled_bytes <= UNSPOOLED_BYTES_MAX:
            self._chunks.put_nowait((reply, payload))

    async def run(self) -> None:
        with tempfile.TemporaryFile(dir=self.owner.directory) as file:
            cipher = self.owner.cipher
            spool: ScratchFile = file if cipher is None else cipher.scratch(file)
            try:
                reply = await self._spool(spool)
            finally:
                self._inbox.close()
            if reply is None:
                return  # the client has disconnected, and nothing was created
            try:
                assignment = await self._load(spool)
                info = await self.info(self.account, assignment)
                body = encode_response(ApiKind.STREAM_CREATE, info, DidCreate(did_create=True))
            except JetStreamError as refused:
                body = encode_error(ApiKind.STREAM_CREATE, refused)
            except (BadArchive, BlockDamaged, CallFailed, TimeoutError, OSError) as problem:
                reason = str(problem) or "timeout"
                failure = JetStreamError.of(ErrCode.STREAM_RESTORE, err=reason)
                body = encode_error(ApiKind.STREAM_CREATE, failure)
        self._answer(reply, body)

    async def _spool(self, spool: ScratchFile) -> bytes | None:
        """Receive chunks up to the empty one, which is the last. Returns the subject on which to
        answer it, or None when the client stalled."""
        while True:
            try:
                async with asyncio.timeout(STALLED_AFTER_S):
                    reply, chunk = await self._chunks.get()
            except TimeoutError:
                return None
            if not chunk:
                return reply
            self.received_bytes += len(chunk)
            try:
                if self._unspooled_bytes > UNSPOOLED_BYTES_MAX:
                    raise OSError("chunks were sent faster than they were answered")
                await asyncio.to_thread(spool.write, chunk)
            except OSError as problem:
                refused = JetStreamError.of(ErrCode.STREAM_RESTORE, err=str(problem))
                self._answer(reply, encode_error(ApiKind.STREAM_CREATE, refused))
                return None
            self._unspooled_bytes -= len(chunk)
            self._answer(reply, b"")

    def _answer(self, reply: bytes, body: bytes) -> None:
        if reply:
            self.owner.router.publish(self.account, reply, b"", b"", body)

    # -- the stream -----------------------------------------------------------------------------

    async def _load(self, spool: ScratchFile) -> Assignment:
        """Create the stream, fill it, open it. On any failure it is removed again."""
        owner = self.owner
        async with owner.inflating(self.account.name):
            head = await asyncio.to_thread(_checked_head, spool, self.config)
        quiet = replace(self.config, subjects=(), mirror=None, sources=(), first_seq=0)
        if owner.assignments.get(self.account.name, quiet.name) is not None:
            raise JetStreamError(ErrCode.STREAM_NAME_EXIST_RESTORE_FAILED)
        created_ns = owner.meta_requests.now_ns()
        made = await owner.meta_requests.change(
            AssignStream(self.account.name, quiet, created_ns, self.peers)
        )
        if made.created_ns != created_ns:  # another restore of this name has begun meanwhile
            raise JetStreamError(ErrCode.STREAM_NAME_EXIST_RESTORE_FAILED)
        try:
            await self._fill(made.group, head, spool)
            account, config = self.account.name, self.config
            assignment = await self.change(
                config, lambda checked: ReconfigureStream(account, config, checked=checked)
            )
            await self.reconfigure(assignment)
        except BaseException:
            # Also when cancelled: an incomplete stream must not be mistaken for the restored one.
            with contextlib.suppress(JetStreamError):
                await owner.meta_requests.change(
                    RemoveStream(self.account.name, quiet.name, made.created_ns)
                )
            raise
        return assignment

    async def _fill(self, group: int, head: Head, spool: ScratchFile) -> None:
        images: list[bytes] = []
        parts = _parts(spool, ArchiveReader())
        while True:
            async with self.owner.inflating(self.account.name):
                part = await asyncio.to_thread(next, parts, None)
                if part is None:
                    break
                kind, payload = part
                if kind is Part.BLOCK:
                    await self._load_part(group, _encode((group, payload, b"")))
                elif kind is Part.CONSUMER:
                    images.append(payload)
        for state in _states(head, images):
            await self._load_part(group, _encode((group, b"", _encode(state))))

    async def _load_part(self, group: int, body: bytes) -> None:
        """Ask the stream's leader to propose it. Idempotent."""
        await self.owner.calls.call(
            group,
            "load",
            body,
            within_s=LOAD_WITHIN_S,
            timeout_s=LOAD_WITHIN_S,
            retry_every_s=0.05,
        )


def _parts(spool: ScratchFile, reader: ArchiveReader) -> Iterator[tuple[Part, bytes]]:
    """All parts, inflated one after the other. Runs on a thread. Raises BadArchive."""
    spool.seek(0)
    while data := spool.read(READ_BYTES):
        yield from reader.feed(data)


def _checked_head(spool: ScratchFile, config: StreamConfig) -> Head:
    """Read and check everything once before the stream is created: the archive comes from a client
    and is not trusted. Raises BadArchive, BlockDamaged or JetStreamError."""
    reader, head = ArchiveReader(config.duplicate_window), None
    for kind, payload in _parts(spool, reader):
        if kind is Part.HEAD:
            head = read_head(payload)
        elif kind is Part.BLOCK:
            check_block(payload)
        elif kind is Part.CONSUMER:
            _check_consumer(payload, config)
    if head is None or not reader.complete:
        raise BadArchive("the archive is cut short")
    if head.stream and head.stream != config.name:
        raise BadArchive(f"the archive is of stream {head.stream}")
    return head


def _check_consumer(image: bytes, stream: StreamConfig) -> None:
    """Check the configuration by the rules of a create, except for limits of the account."""
    try:
        name, config = check_image(image)
    except BadImage as error:
        raise BadArchive(str(error)) from error
    if not valid_asset_name(name):
        raise BadArchive(f"a consumer with the name {name[:40]!r}")
    if config.deliver_subject.encode().startswith(SERVED):
        raise BadArchive(f"consumer {name} delivers to {config.deliver_subject}")
    config = replace(config, num_replicas=0)
    finish(consumer_config_steps(config, stream=stream, view=AccountView()))


def _states(head: Head, images: list[bytes]) -> Iterator[LoadState]:
    """The state besides messages. The leader stamps the time."""
    for at in range(0, len(head.message_ids), STATE_ITEMS_MAX):
        ids = head.message_ids[at : at + STATE_ITEMS_MAX]
        yield LoadState(0, head.last_seq, message_ids=ids)
    for image in images:
        yield LoadState(0, head.last_seq, consumers=[image])
    yield LoadState(
        0, head.last_seq, head.last_msg_id, last_time=head.last_time, sources=head.sources
    )
