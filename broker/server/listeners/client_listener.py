"""The client port: its socket, from bind to close.

Owns: the listening socket of plain and TLS clients.
May not touch: connections once they are made.
Spec: nats-server, `host` and `port`; the socket is bound before anything else starts."""

from __future__ import annotations

import asyncio
from typing import Protocol

from broker.server.client.connection import Connection
from broker.server.client.listener_profile import ClientContext, ListenerProfile
from broker.server.listeners.proxied_client import ProxiedClient
from broker.server.process.listening import ListeningPort
from broker.server.process.log import logger


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
        self._port = ListeningPort()
        self.port = 0

    def bind(self) -> None:
        """Raises StartFailed."""
        options = self._profile.context.settings.options
        self.port = self._port.bind(options.host, options.port)

    async def listen(self) -> None:
        """Raises StartFailed."""
        loop = asyncio.get_running_loop()
        proxied = self._profile.context.settings.options.proxy_protocol

        def accept() -> asyncio.Protocol:
            connection = Connection(self._profile, loop)
            return ProxiedClient(connection) if proxied else connection

        await self._port.listen(accept)

    def announce(self) -> None:
        logger.info("Listening for client connections on %s", self._port.address)
        if self._profile.context.settings.options.proxy_protocol:
            logger.info("PROXY protocol enabled for client connections")
        if self._profile.context.settings.options.tls is not None:
            logger.info("TLS required for client connections")

    def close(self) -> None:
        self._port.close()
