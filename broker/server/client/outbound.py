"""The outbound buffer of one client, and backpressure when it does not drain.

Owns: the queued bytes, one write per turn of the loop, the write deadline, stalled producers.
May not touch: the protocol. The connection decides how a slow client is closed.
Bounds: `max_pending` bytes and the write deadline; beyond either, the client is closed. The account
as a whole is bounded as well (broker/accounts/unsent_bytes.py)."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from broker.accounts.unsent_bytes import UnsentBytes
from broker.server.client.client_socket import ClientSocket
from broker.server.routing.flush_queue import FlushQueue
from broker.subjects import PublishingConnection

WRITE_SIZE = 128 * 1024  # bytes handed to the transport at a time: one write deadline covers them
STALL_SECONDS_MAX = 0.1  # a producer is stalled at most this long, then is read from once more


class SlowClient(Protocol):
    """What the buffer tells its connection."""

    def queue_overflow(self) -> None:
        """More than `max_pending` bytes wait."""

    def write_too_slow(self) -> None:
        """The transport accepted nothing for as long as the write deadline."""


class Outbound:
    """The writing half of a connection."""

    __slots__ = (
        "_chunks", "_deadline", "_drained", "_ended", "_flushes", "_full", "_loop", "_owner",
        "_socket",
        "_stall_end", "_stalled", "closed", "flush_due", "max_pending", "queued_bytes",
        "stall_above", "stalls", "unsent", "write_deadline_s",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        socket: ClientSocket,
        owner: SlowClient,
        unsent: UnsentBytes,
        flushes: FlushQueue,
    ) -> None:
        self.unsent = unsent  # bytes queued for all clients of the account
        self._flushes = flushes
        self._loop = loop
        self._socket = socket
        self._owner = owner
        self._chunks: deque[bytes | memoryview] = deque()
        self.queued_bytes = 0
        self.flush_due = False
        self._full = False  # the transport asked for a pause
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: list[PublishingConnection] = []
        self._stall_end: asyncio.TimerHandle | None = None
        self._drained = asyncio.Event()
        self.closed = False  # nothing more is queued
        self._ended = False  # nothing more is written
        self.stalls = 0
        self.max_pending = 0
        self.stall_above = 0
        self.write_deadline_s = 0.0

    def set_limits(
        self, *, max_pending: int, write_deadline_ns: int, stall_producers: bool = True
    ) -> None:
        """Apply limits that a reload may change for open connections."""
        self.max_pending = max_pending
        self.stall_above = max_pending * 3 // 4 if stall_producers else max_pending
        self.write_deadline_s = write_deadline_ns / 1e9

    def enter_account(self, unsent: UnsentBytes) -> None:
        """Count the queued bytes against the client's new account."""
        queued = self.queued_bytes
        if queued:
            self.unsent.removed(queued, emptied=True)
            unsent.bytes += queued
            unsent.queues += 1
        self.unsent = unsent

    # -- queueing ---------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        return self.queued_bytes + self._socket.buffered_bytes

    @property
    def chunk_count(self) -> int:
        return len(self._chunks)

    def queue(self, data: bytes | memoryview) -> None:
        """Append to the buffer, which is written at the end of this turn of the loop."""
        if self.closed:
            return
        size, unsent = len(data), self.unsent
        if not self.queued_bytes and size:
            unsent.queues += 1
        self._chunks.append(data)
        self.queued_bytes += size
        unsent.bytes += size
        if not self.flush_due:
            self.flush_due = True
            self._flushes.add(self)
        if self.queued_bytes > self.max_pending:
            self._owner.queue_overflow()
        elif unsent.bytes > self.max_pending:
            self._crowded()

    def _crowded(self) -> None:
        """Too much is queued for the clients of this account together. A client that reads is
        flushed now. Once pausing publishers has not helped, a client that does not read and has
        queued more than its share is closed."""
        if not self._full:
            self.flush()
        unsent, queued = self.unsent, self.queued_bytes
        crowded = unsent.bytes > 2 * self.max_pending
        if self._full and crowded and queued * unsent.queues >= unsent.bytes:
            self._owner.queue_overflow()

    def wait_for_readers(self, publisher: PublishingConnection) -> None:
        """Too much is queued here, or for the account's clients together: pause the publisher."""
        if self.queued_bytes > self.stall_above:
            self.stall(publisher)
        else:
            self.unsent.pause(publisher, below=self.max_pending // 2)

    def send(self, data: bytes) -> None:
        """Like `queue`, but hand the bytes to the transport now; uvloop writes them to the socket
        immediately. For answers that a client waits for before it sends more."""
        socket = self._socket
        transport = socket.transport
        if (
            self._chunks
            or self._full
            or self.closed
            or transport is None
            or not socket.bare
            or transport.is_closing()
        ):
            self.queue(data)
        else:
            transport.write(data)

    def stall(self, publisher: PublishingConnection) -> None:
        """The queue is long: pause the producer that feeds it until it has drained.

        Bounded by STALL_SECONDS_MAX, so that one slow client cannot hold a producer forever;
        the slow client then exceeds max_pending and is closed."""
        if publisher in self._stalled:
            return
        self.stalls += 1
        publisher.pause_reading()
        self._stalled.append(publisher)
        if self._stall_end is None:
            self._stall_end = self._loop.call_later(STALL_SECONDS_MAX, self._release_stalled)

    # -- writing ----------------------------------------------------------------------------

    def flush_in_turn(self) -> None:
        self.flush_due = False
        self.flush()

    def flush(self) -> None:
        """Write as much as the transport accepts now."""
        socket = self._socket
        transport = socket.transport
        while self._chunks and not self._full and transport is not None:
            if transport.is_closing():
                return
            if self.queued_bytes <= WRITE_SIZE:
                batch: list[bytes | memoryview] = list(self._chunks)
                self._chunks.clear()
                size = self.queued_bytes
            else:
                batch, size = self._take_batch()
            self.queued_bytes -= size
            self.unsent.removed(size, emptied=not self.queued_bytes)
            data = batch[0] if len(batch) == 1 else b"".join(batch)
            transport.write(data if socket.bare else socket.sealed(data))
        if self._stalled and self.queued_bytes <= self.stall_above:
            self._release_stalled()

    def _take_batch(self) -> tuple[list[bytes | memoryview], int]:
        batch: list[bytes | memoryview] = []
        size = 0
        while self._chunks and size < WRITE_SIZE:
            chunk = self._chunks.popleft()
            batch.append(chunk)
            size += len(chunk)
        return batch, size

    def pause_writing(self) -> None:
        """The transport is full; the write deadline runs until it accepts more."""
        self._full = True
        self.start_deadline()

    def end(self) -> None:
        """The socket can no longer be written; what is queued from now on is dropped."""
        self._ended = self._full = True

    def resume_writing(self) -> None:
        self._full = self._ended
        self._stop_deadline()
        self._drained.set()
        self.flush()

    async def drained(self) -> None:
        """Wait until the socket accepts more. Raises ConnectionResetError if the client is gone."""
        self.flush()
        while self._full and not self.closed:
            self._drained.clear()
            await self._drained.wait()
        if self.closed:
            raise ConnectionResetError("the client has disconnected")

    def start_deadline(self) -> None:
        if self._deadline is None:
            deadline_s = self.write_deadline_s
            self._deadline = self._loop.call_later(deadline_s, self._owner.write_too_slow)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # -- the end ----------------------------------------------------------------------------

    def _release_stalled(self) -> None:
        if self._stall_end is not None:
            self._stall_end.cancel()
            self._stall_end = None
        stalled, self._stalled = self._stalled, []
        for publisher in stalled:
            publisher.resume_reading()

    def drop(self) -> None:
        """Discard the queue and let the stalled producers continue."""
        self._chunks.clear()
        if self.queued_bytes:
            size, self.queued_bytes = self.queued_bytes, 0
            self.unsent.removed(size, emptied=True)
        self._drained.set()
        self._stop_deadline()
        self._release_stalled()
