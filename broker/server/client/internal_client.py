"""The server's own way in: mirrors and sources read the streams of their account like any client,
over a pair of sockets that no network sees.

Owns: the pair, and what a connection that comes this way is spared: TLS, credentials, the limits
set for clients, a place in what is told of them.
May not touch: who may come in from outside. There is nothing to know that would lead in here.
Spec: DESIGN section 8."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING

from broker.accounts.authentication import Authenticator
from broker.accounts.identity import Credentials, Identity
from broker.config.options import Authorization, TlsOptions
from broker.server.client.close_reason import Reason
from broker.server.client.connection import Connection
from broker.server.client.endpoint import Endpoint
from broker.server.client.listener_profile import ListenerProfile

if TYPE_CHECKING:
    from broker.server.server import Server


async def connect(server: Server, account: str) -> socket.socket:
    """Our end of a connection to the server, in that account and without restrictions."""
    loop = asyncio.get_running_loop()
    entrance = Inside(server, account)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # noqa: FBT003
    theirs.setblocking(False)  # noqa: FBT003
    try:
        await loop.connect_accepted_socket(lambda: InternalClient(server, loop, entrance), theirs)
    except BaseException:
        ours.close()
        theirs.close()
        raise
    return ours


class InternalAuthenticator(Authenticator):
    """Whoever comes is the server, in that account."""

    __slots__ = ("_identity_of_all",)

    def __init__(self, account: str) -> None:
        super().__init__(Authorization())
        self._identity_of_all = Identity(account=account)

    def anonymous(self) -> Identity:
        return self._identity_of_all

    def identify(self, given: Credentials) -> Identity:
        return self._identity_of_all


class Inside(ListenerProfile):
    """Asks for nothing: the socket itself shows who is at its other end."""

    kind = "inside"
    mark = "inside"

    def __init__(self, server: Server, account: str) -> None:
        super().__init__(server)
        self._authenticator = InternalAuthenticator(account)

    @property
    def authenticator(self) -> Authenticator:
        return self._authenticator

    @property
    def tls(self) -> tuple[TlsOptions, ssl.SSLContext] | None:
        return None


class InternalClient(Connection):
    """A part of the server, not a client: it is not counted, listed, limited, or told of."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Endpoint.connection_made(self, transport)  # not a client to be admitted
        self.server.insiders.add(self)
        self.greet()

    def _begin_close(self, reason: Reason) -> None:
        super()._begin_close(reason)
        self.server.insiders.discard(self)

    def _enter(self, identity: Identity) -> None:
        super()._enter(identity)
        del self.account.connections[self.cid]

    def _admit(self, identity: Identity | None) -> None:
        assert identity is not None, "ourselves"
        self.headers_ok = self.no_responders = True
        self.guarded = False
        self.live.start_pings()

    def _subscription_refusal(self, subject: bytes, queue: bytes) -> str | None:
        return None

    @property
    def payload_max(self) -> int:
        return -1
