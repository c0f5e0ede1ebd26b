"""A connection inside the process: two transports that pass bytes to each other, without a socket.

Owns: the bytes in flight in both directions, their bound, and the propagation of a close.
May not touch: what the bytes mean.
Spec: asyncio.Transport. A write never calls the other side: the bytes are delivered in a later turn
of the loop. A side that writes more than the high-water mark is paused until the other one has
read; that bounds the bytes in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

HIGH_WATER = 1 << 20
HANDED_MAX = 256 * 1024  # bytes of one call of data_received, if they came in smaller pieces


def connect_pair(
    loop: asyncio.AbstractEventLoop,
    one: asyncio.Protocol,
    other: asyncio.Protocol,
    peername: tuple[str, int] | None = None,
) -> tuple[PipeEnd, PipeEnd]:
    """Both protocols are connected when this returns. `peername` is what `other` sees of `one`."""
    ends = PipeEnd(loop, one), PipeEnd(loop, other, peername)
    ends[0].peer, ends[1].peer = ends[1], ends[0]
    one.connection_made(ends[0])
    other.connection_made(ends[1])
    return ends


class PipeEnd(asyncio.Transport):
    """The transport of one side. What it writes waits in `sent` until the peer takes it."""

    peer: PipeEnd

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.Protocol,
        peername: tuple[str, int] | None = None,
    ) -> None:
        super().__init__({"peername": peername})
        self._loop = loop
        self.protocol = protocol
        self.sent: deque[bytes] = deque()
        self.sent_bytes = 0
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self._writing_paused = False
        self.reading_paused = False
        self._handing = False  # _hand_over is scheduled
        self.ending = False
        self.ended = False

    # -- writing

    def write(self, data: Any) -> None:
        if self.ending or not data:
            return
        self.sent.append(bytes(data))
        self.sent_bytes += len(data)
        self.schedule()
        if self.sent_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def schedule(self) -> None:
        if not self._handing and not self.peer.reading_paused:
            self._handing = True
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        """Give the peer one piece, and the rest in later turns."""
        self._handing = False
        peer = self.peer
        if self.ended or peer.reading_paused:
            return
        if self.sent and not peer.ending:
            data = self._take()
            peer.protocol.data_received(data)
            if self._writing_paused and self.sent_bytes <= self._low:
                self._writing_paused = False
                self.protocol.resume_writing()
        if self.sent and not peer.ending:
            self.schedule()
        elif self.ending:
            self._end(None)

    def _take(self) -> bytes:
        pieces = [self.sent.popleft()]
        size = len(pieces[0])
        while self.sent and size + len(self.sent[0]) <= HANDED_MAX:
            pieces.append(self.sent.popleft())
            size += len(pieces[-1])
        self.sent_bytes -= size
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def get_write_buffer_size(self) -> int:
        return self.sent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return False

    # -- reading

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False
        peer = self.peer
        if peer.sent or peer.ending:
            peer.schedule()

    # -- the end

    def close(self) -> None:
        """The peer still gets what was written."""
        if not self.ending:
            self.ending = True
            self.schedule()

    def abort(self) -> None:
        self.ending = True
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        """Both sides are told, in a later turn."""
        for end in (self, self.peer):
            end.ending = True
            end.sent.clear()
            end.sent_bytes = 0
            if not end.ended:
                end.ended = True
                self._loop.call_soon(end.protocol.connection_lost, error)

    def is_closing(self) -> bool:
        return self.ending

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol
