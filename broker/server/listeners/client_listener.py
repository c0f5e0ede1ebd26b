"""The client port: its socket, from bind to close.

Owns: the listening socket of plain and TLS clients.
May not touch: connections once they are made.
Spec: nats-server, `host` and `port`; the socket is bound before anything else starts."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from broker.server.client.connection import Connection
from broker.server.client.listener_profile import ClientContext, ListenerProfile
from broker.server.listeners.proxied_client import ProxiedClient
from broker.server.process import listening
from broker.server.process.log import logger
from broker.server.services import StartFailed


class PortListener(Protocol):
    """`bind` first, `listen` when the server is ready for clients."""

    port: int  # 0 before `bind`

    def bind(self) -> None: ...
    async def listen(self) -> None: ...
    def announce(self) -> None: ...
    def close(self) -> None: ...


class ClientListener:
    """`bind` first, `listen` when the server is ready for clients."""

    def __init__(self, context: ClientContext) -> None:
        self._profile = ListenerProfile(context)
        self._socket: socket.socket | None = None
        self._listener: asyncio.Server | None = None
        self.port = 0

    @property
    def _address(self) -> str:
        host = self._profile.context.settings.options.host
        return listening.join_host_port(host, self.port)

    def bind(self) -> None:
        """Raises StartFailed."""
        options = self._profile.context.settings.options
        self._socket = listening.bind(options.host, options.port)
        self.port = self._socket.getsockname()[1]

    async def listen(self) -> None:
        """Raises StartFailed."""
        sock = self._socket
        assert sock is not None, "bound before"
        loop = asyncio.get_running_loop()
        try:
            sock.listen(listening.BACKLOG)
        except OSError as error:
            raise StartFailed(listening.refusal(self._address, error)) from error
        proxied = self._profile.context.settings.options.proxy_protocol

        def accept() -> asyncio.Protocol:
            connection = Connection(self._profile, loop)
            return ProxiedClient(connection) if proxied else connection

        self._listener = await loop.create_server(accept, sock=sock, backlog=listening.BACKLOG)

    def announce(self) -> None:
        logger.info("Listening for client connections on %s", self._address)
        if self._profile.context.settings.options.proxy_protocol:
            logger.info("PROXY protocol enabled for client connections")
        if self._profile.context.settings.options.tls is not None:
            logger.info("TLS required for client connections")

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        elif self._socket is not None:
            self._socket.close()
        self._socket = None
