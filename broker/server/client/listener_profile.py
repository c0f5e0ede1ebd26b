"""The way a client came in: what its listener wants of it and says to it.

Owns: what differs between listeners. This one is the plain client port.
May not touch: connections, transports.
Spec: core contract 1.4, 3.2 and 8.2."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from broker.accounts.authentication import Authenticator
from broker.config.options import STANDARD, TlsOptions
from broker.server.services import Document

if TYPE_CHECKING:
    from broker.server.server import Server


class ListenerProfile:
    """Asked anew each time, since a reload may change every answer."""

    kind = "nats"  # the type that /connz shows
    mark = "cid"  # how the log counts the clients
    connection_type = STANDARD  # what users may be bound to

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def authenticator(self) -> Authenticator:
        return self._server.authenticator

    @property
    def auth_timeout_s(self) -> float:
        return self._server.auth_timeout_s

    @property
    def ping_interval_s(self) -> float:
        return self._server.options.ping.interval_ns / 1e9

    @property
    def tls(self) -> tuple[TlsOptions, ssl.SSLContext] | None:
        """TLS that begins on the open socket, around the INFO."""
        options, context = self._server.options.tls, self._server.tls_context
        return None if options is None or context is None else (options, context)

    def info(self) -> Document:
        """The INFO that all clients of this listener share; a fresh document."""
        return dict(self._server.info)

    def connect_urls(self, *, ldm: bool = False) -> list[str]:
        return self._server.connect_urls(ldm=ldm)
