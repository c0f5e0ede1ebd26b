"""A client that may be behind a load balancer which speaks the PROXY protocol.

Owns: the first bytes of a connection, until it is known whether they are a PROXY header.
May not touch: anything later; the transport then belongs to the client connection.
Bound: a header has at most 64 KB; while it is incomplete, the authentication timeout applies, as
for any client that has not sent CONNECT.
Spec: nats-server, `proxy_protocol`. INFO is sent before the header arrives."""

from __future__ import annotations

import asyncio
from typing import cast

from broker.server.client.close_reason import Reason
from broker.server.client.connection import Connection
from broker.server.process.log import logger
from broker.wire.proxy_header import BadProxyHeader, read_header


class ProxiedClient(asyncio.Protocol):
    """The protocol of the socket until its first bytes are read; then the connection is."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._begun = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connection.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._begun += data
        connection = self._connection
        try:
            found = read_header(self._begun)
        except BadProxyHeader as bad:
            where = f"{connection.host}:{connection.port}"
            logger.warning("Error reading PROXY protocol header from %s: %s", where, bad)
            self._give_way()
            connection.close(Reason.PROTOCOL_VIOLATION)
            return
        if found is None:
            return
        size, source = found
        if source is not None:
            connection.socket.host, connection.socket.port = source
        self._give_way()
        if len(self._begun) > size:
            connection.data_received(self._begun[size:])

    def _give_way(self) -> None:
        assert self._transport is not None, "data comes after connection_made"
        self._transport.set_protocol(self._connection)

    def eof_received(self) -> bool | None:
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()
