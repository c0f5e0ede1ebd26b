"""WebSocket frames over a socket, as an asyncio transport for a connection above.

Owns: framing in both directions, the close frame, pauses.
May not touch: operations, and how the socket was upgraded (websocket.py; leaf_websocket.py).
Spec: RFC 6455; nats-server, WebSocket support. If servers compress their connection (S2), the
frames are inside the compressed stream."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

from broker.accounts import Account
from broker.compression.s2 import BadS2
from broker.compression.s2_stream import S2Reader, S2Writer
from broker.server.client.close_reason import Reason
from broker.server.process.log import logger
from broker.server.routing.fair_queue import FairQueue
from broker.wire.websocket import (
    CloseStatus,
    FrameReader,
    FrameViolation,
    FrameWriter,
    close_frame,
)

STATUSES = {
    Reason.CLIENT_CLOSED: CloseStatus.NORMAL,
    Reason.AUTHENTICATION_TIMEOUT: CloseStatus.POLICY,
    Reason.AUTHENTICATION_VIOLATION: CloseStatus.POLICY,
    Reason.SLOW_CONSUMER_PENDING: CloseStatus.POLICY,
    Reason.SLOW_CONSUMER_DEADLINE: CloseStatus.POLICY,
    Reason.MAX_ACCOUNT_CONNECTIONS: CloseStatus.POLICY,
    Reason.MAX_CONNECTIONS: CloseStatus.POLICY,
    Reason.MAX_CONTROL_LINE: CloseStatus.POLICY,
    Reason.PARSE_ERROR: CloseStatus.PROTOCOL_ERROR,
    Reason.PROTOCOL_VIOLATION: CloseStatus.PROTOCOL_ERROR,
    Reason.BAD_CLIENT_PROTOCOL: CloseStatus.PROTOCOL_ERROR,
    Reason.MAX_PAYLOAD: CloseStatus.TOO_BIG,
    Reason.READ_ERROR: CloseStatus.GOING_AWAY,
    Reason.STALE_CONNECTION: CloseStatus.GOING_AWAY,
    Reason.SERVER_SHUTDOWN: CloseStatus.GOING_AWAY,
}


class FramedConnection(Protocol):
    """The connection above: of a client, or of a leaf node."""

    reason: Reason | None

    @property
    def account(self) -> Account: ...
    @property
    def cid(self) -> int: ...
    @property
    def label(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, error: Exception | None) -> None: ...
    def data_received(self, chunk: bytes) -> None: ...
    def peer_ended(self) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def fail(self, text: str, reason: Reason) -> None: ...
    def close(self, reason: Reason) -> None: ...


class FramedTransport(asyncio.Transport, asyncio.Protocol):
    """A protocol to the socket below, a transport to the connection above."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._below: asyncio.Transport | None = None
        self._above: FramedConnection | None = None
        self._turns: FairQueue | None = None
        self._reader = FrameReader(max_payload=0)
        self._writer = FrameWriter()
        self._full = False
        self._paused = False  # the connection above has paused reading
        self._waits = False  # reading continues in the next turn
        self._held = False  # reading of the socket below is paused
        self._close_frame: bytes | None = None  # if decided before close()
        self._packer: S2Writer | None = None
        self._unpacker: S2Reader | None = None

    def pack(self, packer: S2Writer) -> None:
        """From now on, the bytes of the socket are compressed in both directions."""
        self._packer, self._unpacker = packer, S2Reader()

    def enter(
        self,
        above: FramedConnection,
        turns: FairQueue,
        *,
        reader: FrameReader,
        writer: FrameWriter,
    ) -> None:
        """The socket is upgraded: connect the connection above to it."""
        self._reader, self._writer, self._turns = reader, writer, turns
        self._above = above
        above.connection_made(self)

    def control(self, frame: bytes) -> bytes:
        """A control frame, as this side sends it (a client masks it)."""
        return frame

    def received(self, chunk: bytes) -> None:
        if self._unpacker is None:
            self._reader.feed(chunk)
        else:
            self._unpacker.feed(chunk)
        if not self._paused and not self._waits:
            self._read_on()

    def _more(self) -> bool:
        """Whether frames wait to be read. Raises BadS2."""
        while not self._reader.more:
            unpacker = self._unpacker
            if unpacker is None or not unpacker.more:
                return False
            data = unpacker.read()
            if data:
                self._reader.feed(data)
        return True

    def _send(self, data: bytes) -> None:
        if self._below is not None:
            self._below.write(data if self._packer is None else self._packer.write(data))

    def lost(self, error: Exception | None) -> None:
        self._below = None
        if self._above is not None:
            self._above.connection_lost(error)

    # -- inbound frames ---------------------------------------------------------------------

    def _read_on(self) -> None:
        """Hand the payloads to the connection until it pauses reading or its turn is over."""
        above, reader = self._above, self._reader
        turns = self._turns
        assert above is not None
        assert turns is not None
        account = above.account.name
        try:
            while not self._paused and not above.closed and self._more():
                if turns.exhausted(account):
                    self._wait()
                    return
                began = time.perf_counter()
                data = reader.read()
                turns.used(account, time.perf_counter() - began)
                if data:
                    above.data_received(data)
            if not self._paused and not above.closed:
                self._release()
        except FrameViolation as violation:
            self._broken(above, violation)
            return
        except BadS2 as error:
            self._broken(above, FrameViolation(f"s2: {error}"))
            return
        if reader.pong is not None:
            self._answer_ping()
        if reader.closing is not None and not self._paused and not above.closed:
            self._close_frame = reader.closing
            above.peer_ended()

    def _wait(self) -> None:
        """Read the rest in another turn: even empty frames cost time."""
        above, turns = self._above, self._turns
        assert above is not None
        assert turns is not None
        self._waits = True
        self._hold()
        turns.wait(self._next_turn, above.account.name, above.cid)

    def _next_turn(self) -> None:
        self._waits = False
        if self._paused or self._above is None or self._above.closed:
            return
        data = b""
        try:
            data = self._reader.read()
        except FrameViolation as violation:
            self._broken(self._above, violation)
            return
        if data:
            self._above.data_received(data)
        if self._paused or self._above.closed:
            return
        if self._reader.more:
            self._wait()
        else:
            self._read_on()

    def _broken(self, above: FramedConnection, violation: FrameViolation) -> None:
        if above.closed:
            return
        logger.error("%s - read error: %s", above.label, violation)
        if violation.status is CloseStatus.TOO_BIG:
            above.fail("Maximum Payload Violation", Reason.MAX_PAYLOAD)
            return
        self._close_frame = close_frame(violation.status, str(violation))
        above.close(Reason.READ_ERROR)

    def _answer_ping(self) -> None:
        """Answer only the last ping, and only when the socket is writable: pongs are not queued."""
        pong = self._reader.pong
        if pong is not None and not self._full and not self.is_closing():
            assert self._below is not None
            self._send(self.control(pong))
            self._reader.pong = None

    # -- the transport above ----------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._send(self._writer.write(bytes(data)))

    def close(self) -> None:
        if self._below is None or self._below.is_closing():
            return
        reason = self._above.reason if self._above is not None else None
        frame = self._close_frame
        if frame is None and reason is not None:
            frame = close_frame(STATUSES.get(reason, CloseStatus.INTERNAL), reason.value)
        if frame:
            self._send(self.control(frame))
        self._below.close()

    def abort(self) -> None:
        if self._below is not None:
            self._below.abort()

    def is_closing(self) -> bool:
        return self._below is None or self._below.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._below is None else self._below.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return 0 if self._below is None else self._below.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert self._below is not None
        self._below.set_write_buffer_limits(high=high, low=low)

    def pause_reading(self) -> None:
        self._paused = True
        self._hold()

    def resume_reading(self) -> None:
        self._paused = False
        if self._below is not None and not self._waits:
            self._loop.call_soon(self._read_rest)

    def _hold(self) -> None:
        """Stop reading the socket until all that was read has been handed to the connection: a
        kilobyte of compressed frames may expand to a megabyte."""
        if self._below is not None and not self._held:
            self._held = True
            self._below.pause_reading()

    def _release(self) -> None:
        if self._below is not None and self._held:
            self._held = False
            self._below.resume_reading()

    def _read_rest(self) -> None:
        """Read the frames that were buffered when the connection paused reading."""
        idle = not self._paused and not self._waits
        if idle and self._above is not None and not self._above.closed:
            self._read_on()

    def pause_writing(self) -> None:
        self._full = True
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        self._full = False
        self._answer_ping()
        if self._above is not None:
            self._above.resume_writing()
