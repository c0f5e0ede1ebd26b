"""The server's own clients: mirrors and sources read the streams of their account like any
client, over a pipe inside the process (memory_pipe.py).

Owns: our end of the pipe, and the profile that exempts such a client from TLS, credentials, limits
and monitoring.
May not touch: connections from outside. No credential gives a client this profile."""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol

from broker.accounts.authentication import Authenticator
from broker.accounts.identity import Credentials, Identity
from broker.config.options import Authorization, TlsOptions
from broker.server.client.connection import Connection
from broker.server.client.listener_profile import ClientContext, ListenerProfile
from broker.server.listeners.memory_pipe import connect_pair

LINE_MAX = 1 << 20  # limit of the StreamReader, which buffers up to twice as much


class HasClients(Protocol):
    """The server, as far as this module uses it."""

    @property
    def clients(self) -> ClientContext: ...


def connect(server: HasClients, account: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Our end of a connection to the server, in that account and without restrictions."""
    return connect_with(InternalProfile(server.clients, account))


def connect_with(
    profile: ListenerProfile, peername: tuple[str, int] | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Our end of a connection with this profile; the server sees a client at `peername`."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_MAX, loop=loop)
    ours = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = connect_pair(loop, ours, Connection(profile, loop), peername)
    return reader, asyncio.StreamWriter(transport, ours, reader, loop)


class InternalAuthenticator(Authenticator):
    """Authenticates every client as the server itself, in one account."""

    __slots__ = ("_server_identity",)

    def __init__(self, account: str) -> None:
        super().__init__(Authorization())
        self._server_identity = Identity(account=account)

    def anonymous(self) -> Identity:
        return self._server_identity

    def identify(self, given: Credentials, *, proven: str = "") -> Identity:
        return self._server_identity


class InternalProfile(ListenerProfile):
    """Requires no credentials: only the server itself can hold the other end of the pipe."""

    kind = "internal"
    mark = "internal"
    internal = True

    def __init__(self, context: ClientContext, account: str) -> None:
        super().__init__(context)
        self._authenticator = InternalAuthenticator(account)

    @property
    def authenticator(self) -> Authenticator:
        return self._authenticator

    @property
    def tls(self) -> tuple[TlsOptions, ssl.SSLContext] | None:
        return None
