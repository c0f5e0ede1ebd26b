"""One WebSocket: a transport for a connection on top of the socket of an HTTP client.

Owns: the upgrade of the socket, and its deadline.
May not touch: frames (framed_transport.py) and operations; to the connection it is a transport like
any other.
Spec: RFC 6455; nats-server, WebSocket support. Bound: a request head has HEAD_MAX bytes and a
deadline; beyond either, the socket is closed."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol, cast

from broker.server.client.tls import outlives_certificate
from broker.server.listeners.framed_transport import FramedConnection, FramedTransport
from broker.server.process.log import logger
from broker.server.routing.fair_queue import FairQueue
from broker.wire.upgrade import HEAD_MAX, Terms, Upgrade, UpgradeRefused, upgrade
from broker.wire.websocket import FRAME_MAX, Deflater, FrameReader, FrameWriter

BROWSER_FRAME_MAX = 4096
HEAD_END = b"\r\n\r\n"


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
    def connection(self, agreed: Upgrade, loop: asyncio.AbstractEventLoop) -> FramedConnection: ...


class WebSocket(FramedTransport):
    """Of a client, or of a leaf node."""

    def __init__(self, listener: UpgradingListener, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._listener = listener
        self._head = bytearray()
        self._deadline: asyncio.TimerHandle | None = None
        self._upgrade: Upgrade | None = None

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
            self.received(chunk)
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
        self._upgraded(agreed)

    def _upgraded(self, agreed: Upgrade) -> None:
        listener, below = self._listener, self._below
        assert below is not None
        self._stop_waiting()
        self._head.clear()
        self._upgrade = agreed
        reader = FrameReader(
            max_payload=listener.max_payload, masked=agreed.masked, compression=agreed.compression
        )
        writer = FrameWriter(
            frame_max=BROWSER_FRAME_MAX if agreed.browser else FRAME_MAX,
            deflater=listener.deflater if agreed.compression else None,
        )
        below.write(agreed.response)
        above = listener.connection(agreed, self._loop)
        self.enter(above, listener.turns, reader=reader, writer=writer)

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
        self.lost(error)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "forwarded_for":
            return self._upgrade.forwarded_for if self._upgrade is not None else default
        return super().get_extra_info(name, default)
