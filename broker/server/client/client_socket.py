"""The socket of one client: its transport, the TLS session on it, and pausing of reads.

Owns: the transport from accept to close, and the bytes between it, TLS and compression.
May not touch: what the bytes mean, or which of them wait to be written (outbound.py).
Spec: NATS client protocol, TLS: the upgrade follows the INFO on the same socket."""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol, cast

from broker.server.client.tls import TlsLayer, describe

TRANSPORT_BUFFER = 128 * 1024  # above it the transport is full and the rest stays queued here


class Packer(Protocol):
    """The sender of a compressed stream."""

    def write(self, data: bytes) -> bytes: ...


class ClientSocket:
    """`transport` is None before accept and after the end."""

    __slots__ = (
        "_half_closed", "_packer", "_pauses", "bare", "forwarded_for", "host", "port", "tls",
        "transport",
    )  # fmt: skip

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.tls: TlsLayer | None = None
        self._packer: Packer | None = None
        self.bare = True  # bytes go to the transport as they are; otherwise through `sealed`
        self.host = ""
        self.port = 0
        self.forwarded_for = ""
        self._pauses = 0
        self._half_closed = False

    def attach(self, transport: asyncio.BaseTransport, *, max_pending: int) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.host, self.port = str(peer[0]).removeprefix("::ffff:"), int(peer[1])
        self.forwarded_for = str(transport.get_extra_info("forwarded_for") or "")
        high = max(1, min(max_pending, TRANSPORT_BUFFER))
        self.transport.set_write_buffer_limits(high=high, low=high // 2)

    def start_tls(self, context: ssl.SSLContext) -> None:
        self.tls = TlsLayer(context)
        self.bare = False

    def dial_tls(self, context: ssl.SSLContext, host: str) -> None:
        """This side has dialed: begin the handshake with the server of that name."""
        self.tls = TlsLayer(context, dialed=host)
        self.bare = False
        self.write_raw(self.tls.begin())

    def pack(self, packer: Packer) -> None:
        """From now on, what is written is compressed."""
        self._packer = packer
        self.bare = False

    def tls_description(self) -> tuple[str, str] | None:
        """(version, cipher)."""
        session = self.tls_session()
        return None if session is None else describe(session)

    def tls_session(self) -> ssl.SSLObject | None:
        """Ours, or the one below the transport (WebSocket)."""
        if self.tls is not None:
            return self.tls.session
        return None if self.transport is None else self.transport.get_extra_info("ssl_object")

    # -- writing ----------------------------------------------------------------------------

    def sealed(self, data: bytes | memoryview) -> bytes | memoryview:
        """The bytes as they go over the socket."""
        tls = self.tls
        if self._packer is not None:
            data = self._packer.write(bytes(data))
        return data if tls is None or not tls.established else tls.encrypt(data)

    def write_raw(self, data: bytes) -> None:
        """Write handshake records, which bypass the buffer and the encryption."""
        if self._half_closed:
            return
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    @property
    def buffered_bytes(self) -> int:
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    # -- reading ----------------------------------------------------------------------------

    @property
    def reading_pauses(self) -> int:
        return self._pauses

    def pause_reading(self) -> None:
        """Pauses are counted: reading resumes after the same number of resume_reading() calls."""
        self._pauses += 1
        transport = self._readable()
        if self._pauses == 1 and transport is not None:
            transport.pause_reading()

    def resume_reading(self) -> None:
        self._pauses -= 1
        transport = self._readable()
        if self._pauses == 0 and transport is not None:
            transport.resume_reading()

    def _readable(self) -> asyncio.Transport | None:
        """None when the transport is closing: its methods would raise until connection_lost."""
        transport = self.transport
        return None if transport is None or transport.is_closing() else transport

    # -- the end ----------------------------------------------------------------------------

    def half_close(self) -> bool:
        """Close the sending side after what the transport has buffered; reading continues.
        Returns False if this transport cannot half-close."""
        transport = self._readable()
        if transport is None or not transport.can_write_eof():
            return False
        if self.tls is not None:
            self.write_raw(self.tls.farewell())
        self._half_closed = True
        transport.write_eof()
        return True

    def close(self) -> None:
        """Close once the transport has written its buffer."""
        if self.transport is not None:
            if self.tls is not None:
                self.write_raw(self.tls.farewell())
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
