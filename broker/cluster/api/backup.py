"""Backup: snapshots of streams, sent to a client chunk by chunk.

Owns: the transfer to one client per snapshot: its window, its timeouts, its end.
May not touch: the layout of the archive (broker/jetstream/stream/archive.py), the stream's state.
The leader sends the snapshot. Blocks are read one at a time as the client acknowledges chunks: a
message removed meanwhile may or may not be in the archive, one published meanwhile is not.
Spec: NATS JetStream API, STREAM.SNAPSHOT."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from broker.cluster.observe.advisories import Advisories
from broker.cluster.observe.asset_info import stream_state
from broker.cluster.replica.replica import Replica
from broker.jetstream.api import advisories
from broker.jetstream.api.requests import SnapshotRequest
from broker.jetstream.api.responses import SnapshotStarted, encode_response
from broker.jetstream.api.subjects import ApiKind
from broker.jetstream.config.api_levels import stored_stream
from broker.jetstream.config.consumer_update import is_internal
from broker.jetstream.config.names import NUID_RANDOM_BYTES, nuid
from broker.jetstream.errors import ErrCode, JetStreamError
from broker.jetstream.stream.archive import FORMAT, ArchiveWriter, Head, Part
from broker.jetstream.stream.nats_archive import KeptConsumer, encode_head
from broker.server.routing.internal_subscription import InternalSubscription
from broker.store.block.codec import Block, BlockDamaged

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.server.routing.router import Router

CHUNK_DEFAULT, CHUNK_MIN, CHUNK_MAX = 128 << 10, 1 << 10, 1 << 20
WINDOW_DEFAULT, WINDOW_MIN, WINDOW_MAX = 8 << 20, 1 << 10, 32 << 20
INTEREST_WITHIN_S = 2.0
PROGRESS_WITHIN_S = 5.0
SNAPSHOTS_MAX = 16  # concurrent, per node; more are refused
SNAPSHOTS_PER_ACCOUNT_MAX = 8

DONE = b"NATS/1.0 204\r\n\r\n"
NO_INTEREST = b"NATS/1.0 408 No Interest\r\n\r\n"
GONE = b"NATS/1.0 500 the stream is gone, or its leader is another\r\n\r\n"
NO_FLOW = b"NATS/1.0 408 No Flow Response\r\n\r\n"


class ClientGone(Exception):
    """The client has disconnected or does not answer; `status` is sent to it anyway."""

    def __init__(self, status: bytes) -> None:
        super().__init__(status.decode().splitlines()[0])
        self.status = status


class ExactInterest(Protocol):
    """Subscriptions to exactly this subject, not to a pattern, here or on other nodes."""

    def exact_here(self, account: Account, subject: bytes) -> bool: ...
    def exact_at_peer(self, account: Account, subject: bytes) -> bool: ...


@dataclass(slots=True)
class Snapshots:
    """The snapshots this node sends."""

    router: Router
    interest: ExactInterest
    advisories: Advisories
    spawn: Callable[[Awaitable[None], str], object]
    running: Counter[str] = field(default_factory=Counter)  # by account

    def begin(self, replica: Replica, request: SnapshotRequest) -> bytes:
        """Start a task that sends the chunks. Returns the answer to the request."""
        account = replica.account.name
        taken = self.running[account]
        if taken >= SNAPSHOTS_PER_ACCOUNT_MAX or self.running.total() >= SNAPSHOTS_MAX:
            raise JetStreamError.of(ErrCode.STREAM_SNAPSHOT, err="too many snapshots in progress")
        state = stream_state(replica, subjects={})
        client = {"acc": replica.account.name}
        self.advisories.send(
            replica.account, advisories.snapshot_create(replica.name, state, client)
        )
        sending = SnapshotTransfer(self.router, self.interest, replica, request)
        self.running[account] += 1
        self.spawn(self._owned(sending), f"snapshot {replica.name}")
        return encode_response(
            ApiKind.STREAM_SNAPSHOT, SnapshotStarted(stored_stream(replica.stream.config), state)
        )

    async def _owned(self, sending: SnapshotTransfer) -> None:
        started, error = self.advisories.now_ns(), ""
        replica = sending.replica
        try:
            error = await sending.run()
        finally:
            self.running[replica.account.name] -= 1
        event = advisories.snapshot_complete(
            replica.name,
            {"acc": replica.account.name},
            start_ns=started,
            end_ns=self.advisories.now_ns(),
            error=error,
        )
        self.advisories.send(replica.account, event)


@dataclass(slots=True)
class SnapshotTransfer:
    """One snapshot being sent."""

    router: Router
    interest: ExactInterest
    replica: Replica
    request: SnapshotRequest
    _unacked: int = 0
    _index: int = 0
    _acked: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> str:
        """Send the snapshot. If that fails, send the reason to the client and return it; "" when
        complete."""
        token = nuid(secrets.token_bytes(NUID_RANDOM_BYTES))
        prefix = f"$JS.SNAPSHOT.ACK.{self.replica.name}.{token}"
        inbox = InternalSubscription(
            self.router, self.replica.account, f"{prefix}.*.*".encode(), self._chunk_acked
        )
        reason = ""
        try:
            await self._wait_interest()
            await self._send_all(prefix)
            end = DONE if self._index else b""
        except ClientGone as gone:
            end, reason = gone.status, str(gone)
        except BlockDamaged as damaged:
            reason = f"snapshot failed: {damaged}"
            end = f"NATS/1.0 500 {reason}\r\n\r\n".encode()
        finally:
            inbox.close()
        self._publish(b"", end, b"")
        return reason

    async def _wait_interest(self) -> None:
        """Wait for the client's subscription, which may come a moment after our answer. A wildcard
        subscription for replies in general, which it may have had before, does not count."""
        deadline = asyncio.get_running_loop().time() + INTEREST_WITHIN_S
        deliver_to = self.request.deliver_subject.encode()
        account = self.replica.account
        interest = self.interest
        while not interest.exact_here(account, deliver_to) and not interest.exact_at_peer(
            account, deliver_to
        ):
            if asyncio.get_running_loop().time() > deadline:
                raise ClientGone(NO_INTEREST)
            await asyncio.sleep(0.05)

    async def _send_all(self, prefix: str) -> None:
        size = _within(self.request.chunk_size, CHUNK_DEFAULT, CHUNK_MIN, CHUNK_MAX)
        window = _within(self.request.window_size, WINDOW_DEFAULT, WINDOW_MIN, WINDOW_MAX)
        in_flight_max = max(window // size, 1)
        held = bytearray()
        async for part in self._parts():
            held += part
            while len(held) >= size:
                chunk = bytes(held[:size])
                del held[:size]
                await self._wait_window(in_flight_max)
                self._index += 1
                self._unacked += 1
                reply = f"{prefix}.{size}.{self._index}".encode()
                self._publish(reply, b"", chunk)
        if held:
            self._publish(b"", b"", bytes(held))

    async def _parts(self) -> AsyncIterator[bytes]:
        """The archive, a part at a time; compression runs in a thread."""
        stream, writer = self.replica.stream, ArchiveWriter()
        head = Head(
            format=FORMAT,
            stream=stream.config.name,
            first_seq=stream.store.first_seq,
            last_seq=stream.store.last_seq,
            last_msg_id=stream.dedup.last_id,
            message_ids=stream.dedup.entries(),
            last_time=stream.store.last_time,
            sources=dict(stream.source_positions),
        )
        consumers = [
            consumer
            for consumer in stream.consumers.values()
            if not self.request.no_consumers and not is_internal(consumer.config)
        ]
        images = [consumer.encode() for consumer in consumers]
        kept = [KeptConsumer(c.name, c.config, c.state, c.last_delivered_ns) for c in consumers]
        records = encode_head(stream.state(), kept, now_ns=time.time_ns())
        yield await asyncio.to_thread(writer.begin, head, records)
        for raw in stream.store.blocks(head.first_seq, head.last_seq):
            if self.replica.leading is None:
                raise ClientGone(GONE)
            if self.request.jsck:
                await asyncio.to_thread(Block, raw)  # raises BlockDamaged
            yield await asyncio.to_thread(writer.messages, raw)
        for image in images:
            yield await asyncio.to_thread(writer.part, Part.CONSUMER, image)
        yield writer.end()

    async def _wait_window(self, in_flight_max: int) -> None:
        while self._unacked >= in_flight_max:
            self._acked.clear()
            try:
                async with asyncio.timeout(PROGRESS_WITHIN_S):
                    await self._acked.wait()
            except TimeoutError as error:
                raise ClientGone(NO_FLOW) from error

    def _chunk_acked(
        self, _subject: bytes, _reply: bytes, _headers: bytes, _payload: bytes
    ) -> None:
        self._unacked = max(self._unacked - 1, 0)
        self._acked.set()

    def _publish(self, reply: bytes, headers: bytes, payload: bytes) -> None:
        self.router.publish(
            self.replica.account, self.request.deliver_subject.encode(), reply, headers, payload
        )


def _within(asked: int, default: int, least: int, most: int) -> int:
    return min(max(asked, least), most) if asked > 0 else default
