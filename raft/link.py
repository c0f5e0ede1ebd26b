"""One TCP connection between two nodes, in frames.

Owns: cutting the byte stream into frames, the bounded send queue, one write per loop turn.
May not touch: what frames mean, who may connect (raft.handshake, raft.transport).
Spec: frame = u32 length (little-endian, of what follows), u8 channel, payload. A length beyond
the limit ends the connection: the limit is small until the handshake is done."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from raft.handshake import LinkClass
from raft.types import NO_NODE

_HEAD: Final = struct.Struct("<IB")
_BUFFER_BYTES: Final = 256 << 10  # frames that fit are cut out of one shared buffer
HANDSHAKE_FRAME_MAX: Final = 256 << 10
LINK_CHANNEL: Final = 0  # handshake, pings, news: the link's own frames


class FrameError(Exception):
    """The peer announces a frame that cannot be."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"a frame of {length} bytes, at most {limit} are allowed")


class Link(asyncio.BufferedProtocol):
    """Calls `on_frame(link, channel, view)` for every frame; the view dies with the call.

    `on_lost(link, error)` comes exactly once, also after close(). An exception out of
    `on_frame` ends this connection and reaches `on_lost` as the error."""

    def __init__(
        self,
        *,
        on_frame: Callable[[Link, int, memoryview], None],
        on_lost: Callable[[Link, BaseException | None], None],
        queue_bytes_max: int,
        on_made: Callable[[Link], None] | None = None,
    ) -> None:
        self.peer_host = ""
        self.node = NO_NODE  # who is on the other side, once the handshake is done
        self.link_class = LinkClass.BULK
        self.frame_bytes_max = HANDSHAKE_FRAME_MAX
        self.quiet_intervals = 0  # since the last byte arrived; counted by the transport
        self.sent_frames = self.sent_bytes = self.dropped_frames = self.received_bytes = 0
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_made = on_made
        self._queue_bytes_max = queue_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._small = bytearray(_BUFFER_BYTES)
        self._large: bytearray | None = None  # the one frame under way that is larger
        self._filled = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flush_scheduled = False
        self._error: BaseException | None = None

    # sending

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def pending_bytes(self) -> int:
        """Bytes accepted and not yet with the kernel."""
        if self._transport is None:
            return 0
        return self._out_bytes + self._transport.get_write_buffer_size()

    def send(self, channel: int, payload: bytes | Sequence[bytes]) -> bool:
        """Queue one frame. False, and nothing queued, when closed or beyond the limit; a single
        frame always fits into an empty queue."""
        pieces = (payload,) if isinstance(payload, bytes) else payload
        size = sum(map(len, pieces)) + _HEAD.size
        pending = self.pending_bytes()
        if not self.open or (pending and pending + size > self._queue_bytes_max):
            self.dropped_frames += 1
            return False
        self._out.append(_HEAD.pack(size - 4, channel))
        self._out.extend(pieces)
        self._out_bytes += size
        self.sent_frames += 1
        self.sent_bytes += size
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        return True

    def counts(self) -> tuple[int, int, int, int]:
        """Sent frames, sent bytes, received bytes, dropped frames."""
        return self.sent_frames, self.sent_bytes, self.received_bytes, self.dropped_frames

    def close(self) -> None:
        """Send what is queued, then close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self, error: BaseException | None = None) -> None:
        """Close at once; `error` is what on_lost will be told."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
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
        self._filled += nbytes
        self.received_bytes += nbytes
        self.quiet_intervals = 0
        try:
            if self._large is None:
                self._cut_small()
            elif self._filled == len(self._large):
                whole, self._large, self._filled = self._large, None, 0
                self._on_frame(self, whole[4], memoryview(whole)[5:])
        except Exception as error:  # noqa: BLE001 - nothing a peer sends may leave its connection
            self.abort(error)

    def _cut_small(self) -> None:
        """Hand out the whole frames of the shared buffer, keep the rest."""
        buffer, filled = self._small, self._filled
        view = memoryview(buffer)
        start = 0
        while filled - start >= _HEAD.size:
            length, channel = _HEAD.unpack_from(buffer, start)
            if not 1 <= length <= self.frame_bytes_max:
                raise FrameError(length, self.frame_bytes_max)
            stop = start + 4 + length
            if stop > filled:
                if 4 + length > _BUFFER_BYTES:
                    self._large = bytearray(4 + length)
                    self._large[: filled - start] = view[start:filled]
                    self._filled = filled - start
                    return
                break
            self._on_frame(self, channel, view[start + _HEAD.size : stop])
            if not self.open:
                return
            start = stop
        rest = filled - start
        if start and rest:
            buffer[:rest] = buffer[start:filled]
        self._filled = rest

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self._out.clear()
        self._out_bytes = 0
        self._on_lost(self, self._error or exc)
