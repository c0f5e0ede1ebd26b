"""Streams restored from an archive that a client sends.

Owns: the conversation with one client per restore, the spooled bytes, and the stream until it is
whole: it captures no subject before, and is removed again when the restore fails.
May not touch: the layout of the archive (jetstream/archive.py).
The messages go through the stream's own log, with their old sequences and times, so that every
replica has them and a crash in the middle costs nothing but the restore.
Spec: JetStream sheet 1.8."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from broker.cluster.meta.assignments import (
    Assignment,
    AssignStream,
    ReconfigureStream,
    RemoveStream,
)
from broker.cluster.observe.advisories import Client
from broker.cluster.peers.rpc import CallFailed
from broker.jetstream.api import advisories
from broker.jetstream.api.info import StreamInfo
from broker.jetstream.api.responses import DidCreate, RestoreReady, encode_error, encode_response
from broker.jetstream.api.subjects import ApiKind
from broker.jetstream.commands.stream_commands import LoadState
from broker.jetstream.config import StreamConfig
from broker.jetstream.config.names import NUID_RANDOM_BYTES, nuid
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.stream.archive import ArchiveReader, BadArchive, Head, Part, read_head
from broker.server.routing.internal_subscription import InternalSubscription
from broker.store.block.block import Block, BlockDamaged

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.cluster.node import JetStreamNode

RESTORES_MAX = 16  # at once, per node
STALLED_AFTER_S = 5.0
READ_BYTES = 1 << 20
LOAD_WITHIN_S = 30.0  # for one block, over changes of leadership
STATE_ITEMS_MAX = 10_000  # message ids per command

_encode = msgspec.msgpack.Encoder().encode

Info = Callable[["Account", Assignment], Awaitable[StreamInfo]]
Update = Callable[[Assignment], Awaitable[None]]


@dataclass(slots=True)
class Restores:
    """Those clients send to this node."""

    node: JetStreamNode
    info: Info
    tell_leader: Update
    running: int = 0

    def begin(
        self, account: Account, client: Client, config: StreamConfig, peers: list[int]
    ) -> bytes:
        """`config` has been checked. The answer names the subject to send the archive to."""
        if self.node.meta.get(account.name, config.name) is not None:
            raise JetStreamError(ErrCode.STREAM_NAME_EXIST_RESTORE_FAILED)
        if self.running >= RESTORES_MAX:
            raise JetStreamError.of(ErrCode.STREAM_RESTORE, err="too many restores in progress")
        restore = Restore(self, account, client, config, peers)
        self.running += 1
        self.node.advising.send(account, advisories.restore_create(config.name, client))
        self.node.spawn(self._owned(restore), f"restore {config.name}")
        answer = RestoreReady(deliver_subject=restore.subject)
        return encode_response(ApiKind.STREAM_RESTORE, answer)

    async def _owned(self, restore: Restore) -> None:
        started = self.node.now_ns()
        try:
            await restore.run()
        finally:
            self.running -= 1
        event = advisories.restore_complete(
            restore.config.name,
            restore.client,
            start_ns=started,
            end_ns=self.node.now_ns(),
            size=restore.received_bytes,
        )
        self.node.advising.send(restore.account, event)


@dataclass(slots=True)
class Restore:
    """One restore from its first chunk to its answer."""

    owner: Restores
    account: Account
    client: Client
    config: StreamConfig
    peers: list[int]
    received_bytes: int = 0
    subject: str = field(init=False)
    _inbox: InternalSubscription = field(init=False)
    # Bounded by the client's own window: every chunk is answered, and waits here until it is.
    _chunks: asyncio.Queue[tuple[bytes, bytes]] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        token = nuid(secrets.token_bytes(NUID_RANDOM_BYTES))
        self.subject = f"$JS.SNAPSHOT.RESTORE.{self.config.name}.{token}"
        router = self.owner.node.server.router
        self._inbox = InternalSubscription(router, self.account, self.subject.encode(), self._taken)

    def _taken(self, _subject: bytes, reply: bytes, _headers: bytes, payload: bytes) -> None:
        self._chunks.put_nowait((reply, payload))

    async def run(self) -> None:
        with tempfile.TemporaryFile(dir=self.owner.node.directory) as spool:
            try:
                reply = await self._spooled(spool)
            finally:
                self._inbox.close()
            if reply is None:
                return  # the client is gone: nobody to answer, nothing was made
            try:
                assignment = await self._load(spool)
                info = await self.owner.info(self.account, assignment)
                body = encode_response(ApiKind.STREAM_CREATE, info, DidCreate(did_create=True))
            except JetStreamError as refused:
                body = encode_error(ApiKind.STREAM_CREATE, refused)
            except (BadArchive, BlockDamaged, CallFailed, TimeoutError, OSError) as problem:
                reason = str(problem) or "timeout"
                failure = JetStreamError.of(ErrCode.STREAM_RESTORE, err=reason)
                body = encode_error(ApiKind.STREAM_CREATE, failure)
        self._answer(reply, body)

    async def _spooled(self, spool: IO[bytes]) -> bytes | None:
        """Take chunks until the empty one; the subject to answer it on. None: it stalled."""
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
                await asyncio.to_thread(spool.write, chunk)
            except OSError as problem:
                refused = JetStreamError.of(ErrCode.STREAM_RESTORE, err=str(problem))
                self._answer(reply, encode_error(ApiKind.STREAM_CREATE, refused))
                return None
            self._answer(reply, b"")

    def _answer(self, reply: bytes, body: bytes) -> None:
        if reply:
            self.owner.node.server.router.publish(self.account, reply, b"", b"", body)

    # -- the stream -----------------------------------------------------------------------------

    async def _load(self, spool: IO[bytes]) -> Assignment:
        """Make the stream, fill it, open it. Whatever goes wrong, it is not left half full."""
        node = self.owner.node
        head = await asyncio.to_thread(_checked_head, spool, self.config.name)
        quiet = replace(self.config, subjects=(), mirror=None, sources=(), first_seq=0)
        if node.meta.get(self.account.name, quiet.name) is not None:
            raise JetStreamError(ErrCode.STREAM_NAME_EXIST_RESTORE_FAILED)
        made = await node.meta_calls.change(
            AssignStream(self.account.name, quiet, time.time_ns(), self.peers)
        )
        try:
            await self._fill(made.group, head, spool)
            command = ReconfigureStream(self.account.name, self.config)
            assignment = await node.meta_calls.change(command)
            await self.owner.tell_leader(assignment)
        except BaseException:
            # Also when cancelled: what remains of it would look like the stream it is not.
            with contextlib.suppress(JetStreamError):
                await node.meta_calls.change(RemoveStream(self.account.name, quiet.name))
            raise
        return assignment

    async def _fill(self, group: int, head: Head, spool: IO[bytes]) -> None:
        images: list[bytes] = []
        spool.seek(0)
        reader = ArchiveReader()
        while data := await asyncio.to_thread(spool.read, READ_BYTES):
            for kind, payload in reader.feed(data):
                if kind is Part.BLOCK:
                    await self._tell(group, _encode((group, payload, b"")))
                elif kind is Part.CONSUMER:
                    images.append(payload)
        for state in _states(head, images):
            await self._tell(group, _encode((group, b"", _encode(state))))

    async def _tell(self, group: int, body: bytes) -> None:
        """Have the stream's leader log it; repeating does no harm."""
        node = self.owner.node
        deadline = time.monotonic() + LOAD_WITHIN_S
        while True:
            try:
                leader = await node.wait_leader(group, timeout_s=deadline - time.monotonic())
                await node.mesh.rpc.call(leader, "load", body, timeout_s=LOAD_WITHIN_S)
            except CallFailed:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
            else:
                return


def _checked_head(spool: IO[bytes], name: str) -> Head:
    """Read everything once before anything is made of it. Raises BadArchive or BlockDamaged."""
    spool.seek(0)
    reader, head = ArchiveReader(), None
    while data := spool.read(READ_BYTES):
        for kind, payload in reader.feed(data):
            if kind is Part.HEAD:
                head = read_head(payload)
            elif kind is Part.BLOCK:
                Block(payload)
    if head is None or not reader.complete:
        raise BadArchive("the archive is cut short")
    if head.stream != name:
        raise BadArchive(f"the archive is of stream {head.stream}")
    return head


def _states(head: Head, images: list[bytes]) -> Iterator[LoadState]:
    """What is not a message. The leader stamps the time."""
    for at in range(0, len(head.message_ids), STATE_ITEMS_MAX):
        ids = head.message_ids[at : at + STATE_ITEMS_MAX]
        yield LoadState(0, head.last_seq, message_ids=ids)
    for image in images:
        yield LoadState(0, head.last_seq, consumers=[image])
    yield LoadState(
        0, head.last_seq, head.last_msg_id, last_time=head.last_time, sources=head.sources
    )
