"""The socket of one client: greeting, TLS, errors, and every way to end.

Owns: the transport from accept to close, and the layers between it and the parser.
May not touch: operations; decrypted bytes go to `_receive`.
Spec: core contract 1.3, 1.11 and 4."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, cast

from broker.config.options import Limits
from broker.server.client import protocol_trace as trace
from broker.server.client.client_sink import ClientSink
from broker.server.client.close_reason import Reason
from broker.server.client.connect_options import ConnectOptions
from broker.server.client.connection_timers import ConnectionTimers
from broker.server.client.tls import HANDSHAKE_RECORD, TlsFailed, TlsLayer, describe
from broker.server.process.log import TRACE, logger
from broker.subjects import Subscription

if TYPE_CHECKING:
    from broker.server.client.listener_profile import ListenerProfile
    from broker.server.server import Server

OK = b"+OK\r\n"
TRANSPORT_BUFFER = 1024 * 1024  # above it the transport is full and the rest stays queued here
OPEN_BEFORE_PING_SECONDS = 2.0


class Endpoint(ClientSink):
    """One accepted socket. Subclasses carry out what arrives on it."""

    cid: int

    def __init__(
        self, server: Server, loop: asyncio.AbstractEventLoop, entrance: ListenerProfile
    ) -> None:
        options = server.options
        super().__init__(loop, max_pending=options.limits.max_pending)
        self.server = server
        self.entrance = entrance
        self.cid = server.next_cid()
        self.connect = ConnectOptions()
        self.authorized = False
        self.connect_received = False
        self.first_pong_sent = False
        self.scans = 0  # bulk reads in progress
        self.subs: dict[bytes, Subscription] = {}
        self.host = ""
        self.port = 0
        self._forwarded_for = ""
        self.started = time.time()
        self.opened = loop.time()
        self.last_data = self.opened  # loop time of the last bytes, either way of meaning
        self.reason: Reason | None = None
        self.write_deadline_s = options.limits.write_deadline_ns / 1e9
        self._tls: TlsLayer | None = None
        self._first_byte_decides = False
        self._info_sent = False
        self.live = ConnectionTimers(self, loop)
        self._tracing = logger.isEnabledFor(TRACE)
        self.watchful = self._tracing

    # -- the socket -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.host, self.port = str(peer[0]).removeprefix("::ffff:"), int(peer[1])
        self._forwarded_for = str(transport.get_extra_info("forwarded_for") or "")
        high = max(1, min(self.max_pending, TRANSPORT_BUFFER))
        self._transport.set_write_buffer_limits(high=high, low=high // 2)

    def greet(self) -> None:
        """First words: INFO, or with handshake_first silence until TLS is up."""
        if self.entrance.tls is None:
            self._send_first_info()
            self.live.await_connect()
            return
        tls, context = self.entrance.tls
        if tls.handshake_first:
            self._tls = TlsLayer(context)
            if tls.handshake_fallback_ns:
                self.live.await_first_bytes(tls.handshake_fallback_ns / 1e9)
        else:
            self._send_first_info()
            self._first_byte_decides = self.server.options.allow_non_tls
            if not self._first_byte_decides:
                self._tls = TlsLayer(context)
        self.live.await_handshake(tls.timeout_ns / 1e9)

    def _send_first_info(self) -> None:
        self._info_sent = True
        self.queue(self._info())
        self.flush()

    def clear_info(self) -> None:
        """handshake_first with a fallback, and the client kept silent: ask for TLS in clear."""
        if not self._info_sent and not self.closed:
            self._send_first_info()

    def data_received(self, chunk: bytes) -> None:
        if self.closed:
            return
        self.last_data = self._loop.time()
        if self._first_byte_decides:
            self._decide_by_first_byte(chunk)
        if self._tls is not None:
            chunk = self._decrypt(self._tls, chunk)
        if chunk:
            self._receive(chunk)
        if self._tls is not None and self._tls.ended:
            self.peer_ended()

    def _decide_by_first_byte(self, chunk: bytes) -> None:
        self._first_byte_decides = False
        context = self.server.tls_context
        if chunk[0] == HANDSHAKE_RECORD and context is not None:
            self._tls = TlsLayer(context)
        else:
            self.live.handshake_done()
            self.live.await_connect()

    def _decrypt(self, tls: TlsLayer, chunk: bytes) -> bytes:
        before = tls.established
        self.live.first_bytes_seen()
        try:
            plain = tls.receive(chunk)
        except TlsFailed as failure:
            level_log = logger.debug if before else logger.error
            level_log("%s - TLS handshake error: %s", self.label, failure)
            self._write_raw(tls.pending_output())
            self.close(Reason.TLS_HANDSHAKE_ERROR if not before else Reason.READ_ERROR)
            return b""
        self._write_raw(tls.pending_output())
        if tls.established and not before:
            self.live.handshake_done()
            if not self._info_sent:
                self._send_first_info()
            self.live.await_connect()
        return plain

    def _write_raw(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _sealed(self, data: bytes) -> bytes:
        tls = self._tls
        return data if tls is None or not tls.established else tls.encrypt(data)

    def tls_description(self) -> tuple[str, str] | None:
        if self._tls is not None:
            return self._tls.description()
        below = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        return None if below is None else describe(below)

    def connection_lost(self, error: Exception | None) -> None:
        reason = Reason.CLIENT_CLOSED if error is None else Reason.READ_ERROR
        self._finish(self.reason or reason)

    # -- answers and the end ----------------------------------------------------------------

    @property
    def label(self) -> str:
        """The beginning of log lines about this client."""
        options = self.connect
        about = ":".join(part for part in (options.version, options.lang, options.name) if part)
        shown = f' - "v{about}"' if about else ""
        via = f"{self._forwarded_for}/" if self._forwarded_for else ""
        return f"{via}{self.host}:{self.port} - {self.entrance.mark}:{self.cid}{shown}"

    def _ok(self) -> None:
        if self.connect.verbose:
            self.queue(OK)

    def error(self, text: str) -> None:
        """-ERR; the connection stays."""
        logger.debug("%s - %s", self.label, text)
        self.queue(b"-ERR '" + text.encode() + b"'\r\n")

    def fail(self, text: str, reason: Reason) -> None:
        """-ERR, then close once it has left."""
        self.queue(b"-ERR '" + text.encode() + b"'\r\n")
        self.close(reason)

    def close(self, reason: Reason) -> None:
        """Flush what is queued, then close; a peer that does not read gets the write deadline."""
        if self.closed:
            return
        self.flush()
        self._begin_close(reason)
        transport = self._transport
        if transport is not None:
            if self._chunks:  # the transport is full: what it has is all that can still leave
                self._drop_outbound()
            if self._tls is not None:
                self._write_raw(self._tls.farewell())
            transport.close()
            if self._deadline is None:
                deadline_s = self.write_deadline_s
                self._deadline = self._loop.call_later(deadline_s, self._write_too_slow)

    def abort(self, reason: Reason) -> None:
        """Close now, dropping what is queued."""
        if self.closed:
            return
        self._begin_close(reason)
        self._drop_outbound()
        if self._transport is not None:
            self._transport.abort()

    def _begin_close(self, reason: Reason) -> None:
        self.reason = reason
        self.closed = True
        self.live.stop()

    def _finish(self, reason: Reason) -> None:
        if not self.closed:
            self._begin_close(reason)
        self._drop_outbound()
        self._transport = None

    def _queue_overflow(self) -> None:
        logger.info(
            "%s - Slow Consumer Detected: MaxPending of %d Exceeded", self.label, self.max_pending
        )
        self.server.counters.slow_consumers += 1
        self.abort(Reason.SLOW_CONSUMER_PENDING)

    def _write_too_slow(self) -> None:
        if self.closed:
            if self._transport is not None:
                self._transport.abort()
            return
        logger.info(
            "%s - Slow Consumer Detected: WriteDeadline of %gs exceeded with %d chunks of %d "
            "total bytes.",
            self.label,
            self.write_deadline_s,
            len(self._chunks) + 1,
            self.pending_bytes,
        )
        self.server.counters.slow_consumers += 1
        self.abort(Reason.SLOW_CONSUMER_DEADLINE)

    def queue(self, data: bytes) -> None:
        if self._tracing and not self.closed:
            logger.log(TRACE, "%s - %s", self.label, trace.outbound(data))
        super().queue(data)

    def apply_limits(self, limits: Limits) -> None:
        """Settings that a reload may change for open connections."""
        self.max_pending = limits.max_pending
        self._stall_above = limits.max_pending * 3 // 4
        self.write_deadline_s = limits.write_deadline_ns / 1e9

    @property
    def pingable(self) -> bool:
        """No PING of ours may come before the first PONG, except to a client that is old, and
        none inside the bytes of a bulk read."""
        if self.scans:
            return False
        age = self._loop.time() - self.opened
        return self.first_pong_sent or age > OPEN_BEFORE_PING_SECONDS

    def _info(self) -> bytes:
        raise NotImplementedError

    def peer_ended(self) -> None:
        """The peer sends no more."""
        raise NotImplementedError

    def _receive(self, chunk: bytes) -> None:
        raise NotImplementedError
