"""One WebSocket: a transport for a connection on top of the socket of an HTTP client.

Owns: the upgrade of the socket, its deadline, frames both ways, the close frame.
May not touch: operations; to the connection it is a transport like any other.
Spec: RFC 6455; nats-server, WebSocket support. Bound: a request head has HEAD_MAX bytes and a
deadline; beyond either, the socket is closed."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol, cast

from broker.server.client.close_reason import Reason
from broker.server.client.connection import Connection
from broker.server.client.tls import outlives_certificate
from broker.server.process.log import logger
from broker.server.routing.fair_queue import FairQueue
from broker.wire.upgrade import HEAD_MAX, Terms, Upgrade, UpgradeRefused, upgrade
from broker.wire.websocket import (
    FRAME_MAX,
    CloseStatus,
    Deflater,
    FrameReader,
    FrameViolation,
    FrameWriter,
    close_frame,
)

BROWSER_FRAME_MAX = 4096
HEAD_END = b"\r\n\r\n"

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


class UpgradingListener(Protocol):
    """The listener, as a socket that it accepted sees it."""

    waiting: set[WebSocket]
    handshake_s: float
    terms: Terms
    deflater: Deflater | None

    @property
    def crowded(self) -> bool: ...
    @property
    def max_payload(self) -> int: ...
    @property
    def turns(self) -> FairQueue: ...
    def check_path(self, path: str) -> None: ...
    def connection(self, agreed: Upgrade, loop: asyncio.AbstractEventLoop) -> Connection: ...


class WebSocket(asyncio.Transport, asyncio.Protocol):
    """A protocol to the socket below, a transport to the connection above."""

    def __init__(self, listener: UpgradingListener, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._listener = listener
        self._loop = loop
        self._below: asyncio.Transport | None = None
        self._above: Connection | None = None
        self._head = bytearray()
        self._deadline: asyncio.TimerHandle | None = None
        self._upgrade: Upgrade | None = None
        self._reader = FrameReader(max_payload=0)
        self._writer = FrameWriter()
        self._full = False
        self._paused = False  # by the connection above
        self._waits = False  # for its next turn
        self._held = False  # the socket below is not read
        self._close_frame: bytes | None = None  # if decided before close()

    # -- the socket below: upgrade ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        session = transport.get_extra_info("ssl_object")
        expired = session is not None and outlives_certificate(session, now=time.time())
        if expired or self._listener.crowded:
            self._below.abort()
            return
        self._listener.waiting.add(self)
        self._deadline = self._loop.call_later(self._listener.handshake_s, self._upgrade_timeout)

    def data_received(self, chunk: bytes) -> None:
        if self._above is not None:
            self._reader.feed(chunk)
            if not self._paused and not self._waits:
                self._read_on()
        elif self._deadline is not None:
            self._receive_head(chunk)

    def _receive_head(self, chunk: bytes) -> None:
        seen = max(0, len(self._head) - len(HEAD_END))
        self._head += chunk
        end = self._head.find(HEAD_END, seen)
        if end < 0:
            if len(self._head) > HEAD_MAX:
                self._refuse(UpgradeRefused("request head too long"))
            return
        try:
            agreed = upgrade(bytes(self._head[:end]), self._listener.terms)
            if len(self._head) > end + len(HEAD_END):
                raise UpgradeRefused("client sent data before handshake is complete")
            self._listener.check_path(agreed.path)
        except UpgradeRefused as refusal:
            self._refuse(refusal)
            return
        self._enter(agreed)

    def _enter(self, agreed: Upgrade) -> None:
        listener, below = self._listener, self._below
        assert below is not None
        self._stop_waiting()
        self._head.clear()
        self._upgrade = agreed
        self._reader = FrameReader(
            max_payload=listener.max_payload, masked=agreed.masked, compression=agreed.compression
        )
        self._writer = FrameWriter(
            frame_max=BROWSER_FRAME_MAX if agreed.browser else FRAME_MAX,
            deflater=listener.deflater if agreed.compression else None,
        )
        below.write(agreed.response)
        self._above = listener.connection(agreed, self._loop)
        self._above.connection_made(self)

    def _refuse(self, refusal: UpgradeRefused) -> None:
        logger.error("%s - websocket handshake error: %s", self._peer(), refusal)
        self._stop_waiting()
        if self._below is not None:
            self._below.write(refusal.response())
            self._below.close()

    def _upgrade_timeout(self) -> None:
        logger.error("%s - websocket handshake error: timeout", self._peer())
        self.abort_upgrade()

    def abort_upgrade(self) -> None:
        """Stop waiting for the rest of the request."""
        self._stop_waiting()
        if self._below is not None:
            self._below.abort()

    def _stop_waiting(self) -> None:
        self._listener.waiting.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _peer(self) -> str:
        host, port = (self.get_extra_info("peername") or ("", 0))[:2]
        return f"{host.removeprefix('::ffff:')}:{port}"

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_waiting()
        self._below = None
        if self._above is not None:
            self._above.connection_lost(error)

    # -- inbound frames ---------------------------------------------------------------------

    def _read_on(self) -> None:
        """Hand the payloads to the connection until it pauses reading or its turn is over."""
        above, reader = self._above, self._reader
        assert above is not None
        turns, account = self._listener.turns, above.account.name
        try:
            while reader.more and not self._paused and not above.closed:
                if turns.exhausted(account):
                    self._wait()
                    return
                began = time.perf_counter()
                data = reader.read()
                turns.used(account, time.perf_counter() - began)
                if data:
                    above.data_received(data)
        except FrameViolation as violation:
            self._broken(above, violation)
            return
        if reader.pong is not None:
            self._answer_ping()
        if not reader.more and not self._paused:
            self._release()
        if reader.closing is not None and not self._paused and not above.closed:
            self._close_frame = reader.closing
            above.peer_ended()

    def _wait(self) -> None:
        """Frames cost time, also those that hold nothing: the rest is read in another turn."""
        above = self._above
        assert above is not None
        self._waits = True
        self._hold()
        self._listener.turns.wait(self._next_turn, above.account.name, above.cid)

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

    def _broken(self, above: Connection, violation: FrameViolation) -> None:
        if above.closed:
            return
        logger.error("%s - read error: %s", above.label, violation)
        if violation.status is CloseStatus.TOO_BIG:
            above.fail("Maximum Payload Violation", Reason.MAX_PAYLOAD)
            return
        self._close_frame = close_frame(violation.status, str(violation))
        above.close(Reason.READ_ERROR)

    def _answer_ping(self) -> None:
        """Answer the last ping only, and only when the socket takes it: pongs are not queued."""
        pong = self._reader.pong
        if pong is not None and not self._full and not self.is_closing():
            assert self._below is not None
            self._below.write(pong)
            self._reader.pong = None

    # -- the transport above ----------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._below is not None:
            self._below.write(self._writer.write(bytes(data)))

    def close(self) -> None:
        if self._below is None or self._below.is_closing():
            return
        reason = self._above.reason if self._above is not None else None
        frame = self._close_frame
        if frame is None and reason is not None:
            frame = close_frame(STATUSES.get(reason, CloseStatus.INTERNAL), reason.value)
        self._below.write(frame or b"")
        self._below.close()

    def abort(self) -> None:
        if self._below is not None:
            self._below.abort()

    def is_closing(self) -> bool:
        return self._below is None or self._below.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "forwarded_for":
            return self._upgrade.forwarded_for if self._upgrade is not None else default
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
        """The socket is read again when all that came from it has been handed on: a kilobyte of
        compressed frames may be a megabyte."""
        if self._below is not None and not self._held:
            self._held = True
            self._below.pause_reading()

    def _release(self) -> None:
        if self._below is not None and self._held:
            self._held = False
            self._below.resume_reading()

    def _read_rest(self) -> None:
        """Frames that were buffered when the connection paused reading."""
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
