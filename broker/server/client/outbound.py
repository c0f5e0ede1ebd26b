"""What waits to be written to one client, and what happens when it does not leave.

Owns: the outbound queue, one write per loop turn, slow consumers, stalled producers.
May not touch: protocol meaning; it moves bytes.
Spec: core contract 1.11. Bounds: max_pending bytes, write_deadline; beyond, the client goes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from broker.subjects import PublishingConnection

WRITE_SIZE = 512 * 1024  # handed to the transport at once: what one write deadline covers
STALL_SECONDS_MAX = 0.1  # a producer waits this long per read at most, then may read once more


class Outbound(asyncio.Protocol):
    """The writing half of a connection. Subclasses say what slow means for the log."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, max_pending: int) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._chunks: deque[bytes] = deque()
        self._queued_bytes = 0
        self._flush_due = False
        self._full = False  # the transport asked for a pause
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: list[PublishingConnection] = []
        self._stall_end: asyncio.TimerHandle | None = None
        self._reading_pauses = 0
        self._drained = asyncio.Event()
        self.closed = False
        self.stalls = 0
        self.max_pending = max_pending
        self._stall_above = max_pending * 3 // 4
        self.write_deadline_s = 10.0

    # -- queueing ---------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        transport = self._transport
        buffered = 0 if transport is None else transport.get_write_buffer_size()
        return self._queued_bytes + buffered

    def queue(self, data: bytes) -> None:
        """Append to what goes out at the end of this loop turn, in one write."""
        if self.closed:
            return
        self._chunks.append(data)
        self._queued_bytes += len(data)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_turn)
        if self._queued_bytes > self.max_pending:
            self._queue_overflow()

    def stall(self, origin: PublishingConnection) -> None:
        """The queue is long: the producer that feeds it reads no more until it has drained.

        Bounded by STALL_SECONDS_MAX, so that one slow client cannot hold a producer for good;
        it then overruns max_pending and goes."""
        if cast(object, origin) is self or origin in self._stalled:
            return  # pausing ourselves could wait for ever: our own reads may free the queue
        self.stalls += 1
        origin.pause_reading()
        self._stalled.append(origin)
        if self._stall_end is None:
            self._stall_end = self._loop.call_later(STALL_SECONDS_MAX, self._release_stalled)

    # -- writing ----------------------------------------------------------------------------

    def _flush_turn(self) -> None:
        self._flush_due = False
        self.flush()

    def flush(self) -> None:
        """Give the transport what it will take now."""
        transport = self._transport
        while self._chunks and not self._full and transport is not None:
            if transport.is_closing():
                return
            if self._queued_bytes <= WRITE_SIZE:
                batch: list[bytes] = list(self._chunks)
                self._chunks.clear()
                size = self._queued_bytes
            else:
                batch, size = self._take_batch()
            self._queued_bytes -= size
            data = batch[0] if len(batch) == 1 else b"".join(batch)
            transport.write(self._sealed(data))
        if self._stalled and self._queued_bytes <= self._stall_above:
            self._release_stalled()

    def _take_batch(self) -> tuple[list[bytes], int]:
        batch: list[bytes] = []
        size = 0
        while self._chunks and size < WRITE_SIZE:
            chunk = self._chunks.popleft()
            batch.append(chunk)
            size += len(chunk)
        return batch, size

    def _sealed(self, data: bytes) -> bytes:
        """The bytes as they go over the socket; TLS overrides it."""
        return data

    def pause_writing(self) -> None:
        self._full = True
        if self._deadline is None:
            self._deadline = self._loop.call_later(self.write_deadline_s, self._write_too_slow)

    def resume_writing(self) -> None:
        self._full = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._drained.set()
        self.flush()

    async def drained(self) -> None:
        """Until the socket takes more. Raises ConnectionResetError when it never will."""
        self.flush()
        while self._full and not self.closed:
            self._drained.clear()
            await self._drained.wait()
        if self.closed:
            raise ConnectionResetError("the client is gone")

    # -- reading back-pressure --------------------------------------------------------------

    def pause_reading(self) -> None:
        """Counted: reading goes on when every pause was taken back."""
        self._reading_pauses += 1
        transport = self._readable()
        if self._reading_pauses == 1 and transport is not None:
            transport.pause_reading()

    def resume_reading(self) -> None:
        self._reading_pauses -= 1
        transport = self._readable()
        if self._reading_pauses == 0 and transport is not None:
            transport.resume_reading()

    def _readable(self) -> asyncio.Transport | None:
        """A transport whose peer has gone raises on every call until we are told."""
        transport = self._transport
        if transport is None or self.closed or transport.is_closing():
            return None
        return transport

    # -- ends -------------------------------------------------------------------------------

    def _release_stalled(self) -> None:
        if self._stall_end is not None:
            self._stall_end.cancel()
            self._stall_end = None
        stalled, self._stalled = self._stalled, []
        for origin in stalled:
            origin.resume_reading()

    def _drop_outbound(self) -> None:
        """Nothing more leaves: forget the queue, let the producers go on."""
        self._chunks.clear()
        self._queued_bytes = 0
        self._drained.set()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._release_stalled()

    def _queue_overflow(self) -> None:
        raise NotImplementedError

    def _write_too_slow(self) -> None:
        raise NotImplementedError
