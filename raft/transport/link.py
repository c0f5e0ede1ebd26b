"""One TCP connection between two nodes, in frames.

Owns: cutting the byte stream into frames, the bounded send queue, one write per turn of the loop.
May not touch: what frames mean, who may connect (raft/transport/handshake.py).
Spec: little-endian. Only the greeting is a plain frame, so that every version can read it: u32
length (of what follows), u8 channel, payload. All others are sealed frames: a head with length,
channel and a checksum or tag (raft/transport/frame_guard.py), then the payload. An invalid length
or a wrong checksum closes the connection. The length limit is small until the handshake is done.
There is a checksum per frame and not per write, because a frame is delivered as soon as it has
arrived; frames are few (all messages of a round to one peer are in one frame)."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from raft.transport.frame_guard import (
    FrameCheck,
    FrameError,
    FrameGuard,
    FrameHead,
)
from raft.transport.handshake import BASE_VERSION, LinkClass
from raft.types import NO_NODE

_PLAIN: Final = struct.Struct("<IB")
_PIECE_BYTES_FEW: Final = 512  # if pieces are smaller on average, they are joined for one checksum
_BUFFER_BYTES: Final = 256 << 10  # frames that fit are received in one shared buffer
PLAIN_FRAME_MAX: Final = 1 << 10
CHALLENGE_FRAME_MAX: Final = 1 << 10  # before the other side has proved anything
HANDSHAKE_FRAME_MAX: Final = 256 << 10
LINK_CHANNEL: Final = 0  # the link's own frames: handshake, pings, news


class LinkCounts(NamedTuple):
    sent_frames: int
    sent_bytes: int
    received_bytes: int
    dropped_frames: int


class Link(asyncio.BufferedProtocol):
    """Calls `on_frame(link, channel, view)` for every frame; the view is valid during the call.

    `on_lost(link, error)` is called exactly once, also after close(). An exception raised by
    `on_frame` closes this connection and is passed to `on_lost`."""

    def __init__(
        self,
        *,
        on_frame: Callable[[Link, int, memoryview], None],
        on_lost: Callable[[Link, BaseException | None], None],
        queue_bytes_max: int,
        on_made: Callable[[Link], None] | None = None,
    ) -> None:
        self.peer_host = ""
        self.node = NO_NODE  # the other side, once the handshake is done
        self.link_class = LinkClass.BULK
        self.version = BASE_VERSION  # of the peer protocol; negotiated by the handshake
        self.frame_bytes_max = CHALLENGE_FRAME_MAX
        self.guard: FrameGuard | None = None  # of sealed frames, in both directions
        self.quiet_intervals = 0  # since the last byte arrived; counted by the transport
        self.heard_at = 0.0  # when the last bytes arrived, by the monotonic clock
        self.pinged_at = 0.0  # when the last ping was sent, 0 once it is answered
        self.rtt_s = 0.0  # of the last ping that was answered
        self.sent_frames = self.sent_bytes = self.dropped_frames = self.received_bytes = 0
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_made = on_made
        self._queue_bytes_max = queue_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._small = bytearray(_BUFFER_BYTES)
        self._large: bytearray | None = None  # the frame being received, if it is larger
        self._large_head: FrameHead | None = None
        self._large_check: FrameCheck | None = None  # of the part that has arrived
        self._filled = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flush_scheduled = False
        self._error: BaseException | None = None

    def protect(self, guard: FrameGuard) -> None:
        """From now on, frames in both directions carry the checksums or tags of this guard."""
        self.guard = guard

    # sending

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def pending_bytes(self) -> int:
        """Bytes queued and not yet passed to the kernel."""
        if self._transport is None:
            return 0
        return self._out_bytes + self._transport.get_write_buffer_size()

    def send(self, channel: int, payload: bytes | Sequence[bytes]) -> bool:
        """Queue one frame. Returns False and queues nothing when the link is closed or the queue
        is full; an empty queue takes a frame of any size."""
        pieces = (payload,) if isinstance(payload, bytes) else payload
        size = sum(map(len, pieces))
        pending = self.pending_bytes()
        if not self.open or (pending and pending + size > self._queue_bytes_max):
            self.dropped_frames += 1
            return False
        if self.guard is None:
            head = _PLAIN.pack(size + 1, channel)
        else:
            if size < len(pieces) * _PIECE_BYTES_FEW or not pieces:
                pieces = (b"".join(pieces),)
            head = self.guard.seal(channel, pieces[0], tuple(pieces[1:]))
        self._out.append(head)
        self._out.extend(pieces)
        size += len(head)
        self._out_bytes += size
        self.sent_frames += 1
        self.sent_bytes += size
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)
        return True

    def counts(self) -> LinkCounts:
        return LinkCounts(
            self.sent_frames, self.sent_bytes, self.received_bytes, self.dropped_frames
        )

    def close(self) -> None:
        """Send what is queued, then close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self, error: BaseException | None = None) -> None:
        """Close without flushing; `error` is passed to on_lost."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    def flush(self) -> None:
        """Write the queue now, not at the end of this turn of the loop."""
        self._flush_scheduled = False
        if self._out and self._transport is not None:
            pieces, self._out, self._out_bytes = self._out, [], 0
            if not self._transport.is_closing():
                self._transport.writelines(pieces)

    # receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer: Any = transport.get_extra_info("peername")
        self.peer_host = str(peer[0]) if peer else ""
        if self._on_made is not None:
            self._on_made(self)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return memoryview(self._large or self._small)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        before = self._filled
        self._filled += nbytes
        self.received_bytes += nbytes
        self.quiet_intervals = 0
        self.heard_at = time.monotonic()
        try:
            if self._large is None:
                start = 0 if self.guard is not None else self._cut_plain()
                if self.guard is not None and self.open:
                    self._cut_small(start)
            else:
                self._take_large(self._large, before)
        except Exception as error:  # noqa: BLE001 - what a peer sends may only end its own connection
            self.abort(error)

    def _cut_small(self, start: int) -> None:
        """Deliver the complete frames in the shared buffer, keep the rest."""
        buffer, filled = self._small, self._filled
        view = memoryview(buffer)
        while True:
            guard = self.guard  # a frame of the handshake may have changed it
            assert guard is not None
            if filled - start < guard.head_bytes:
                break
            head = guard.read_head(buffer, start)
            if head.length > self.frame_bytes_max:
                raise _too_long(head.length, self.frame_bytes_max)
            body = start + guard.head_bytes
            stop = body + head.length
            if stop > filled:
                if stop - start > _BUFFER_BYTES:
                    self._begin_large(guard, head, view[body:filled])
                    return
                break
            payload = view[body:stop]
            if not guard.check(head, payload):
                raise _damaged(head)
            self._on_frame(self, head.channel, payload)
            if not self.open:
                return
            start = stop
        rest = filled - start
        if start and rest:
            buffer[:rest] = buffer[start:filled]
        self._filled = rest

    def _cut_plain(self) -> int:
        """Deliver the greeting, the very first frame, if it is complete. Returns where it ends."""
        if self._filled < _PLAIN.size:
            return 0
        length: int
        length, channel = _PLAIN.unpack_from(self._small)
        if not 1 <= length <= PLAIN_FRAME_MAX:
            raise _too_long(length, PLAIN_FRAME_MAX)
        stop = 4 + length
        if stop <= self._filled:
            self._on_frame(self, channel, memoryview(self._small)[_PLAIN.size : stop])
        return stop

    def _begin_large(self, guard: FrameGuard, head: FrameHead, arrived: memoryview) -> None:
        """Start a (sealed) frame that does not fit into the shared buffer."""
        self._large = large = bytearray(head.length)
        large[: len(arrived)] = arrived
        self._filled = len(arrived)
        self._large_head = head
        self._large_check = guard.begin(head)
        self._large_check.update(arrived)

    def _take_large(self, large: bytearray, before: int) -> None:
        head, check = self._large_head, self._large_check
        assert head is not None
        assert check is not None
        view = memoryview(large)
        check.update(view[before : self._filled])
        if self._filled < len(large):
            return
        self._large, self._filled = None, 0
        self._large_head = self._large_check = None
        if not check.matches():
            raise _damaged(head)
        self._on_frame(self, head.channel, view)

    def eof_received(self) -> bool:
        return False

    def abandon(self) -> None:
        """Connecting was canceled: uvloop closes the connection without connection_lost()."""
        if self._transport is not None:
            self.connection_lost(None)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._transport is None:
            return  # abandoned before
        self._transport = None
        self._out.clear()
        self._out_bytes = 0
        self._on_lost(self, self._error or exc)


def _too_long(length: int, limit: int) -> FrameError:
    return FrameError(f"frame of {length} bytes exceeds the limit of {limit}")


def _damaged(head: FrameHead) -> FrameError:
    where = f"frame of {head.length} bytes on channel {head.channel}"
    return FrameError(f"{where} has a wrong checksum")
