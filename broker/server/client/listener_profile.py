"""Settings of a connection that depend on the listener that accepted it.

Owns: what differs between listeners, and the INFO line of one client. ListenerProfile itself is the
profile of the plain client port; other listeners subclass it.
May not touch: transports.
Spec: NATS client protocol, INFO and CONNECT."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from broker.accounts import Account
from broker.accounts.authentication import Authenticator
from broker.accounts.identity import Credentials, Identity
from broker.config.options import STANDARD, TlsOptions
from broker.server.client.connections import Connections
from broker.server.client.info import ClientInfo, ClientUrls
from broker.server.client.settings import ServerSettings
from broker.server.password_checks import PasswordChecks
from broker.server.process.tasks import Spawn
from broker.server.routing.fair_queue import FairQueue
from broker.server.routing.flush_queue import FlushQueue
from broker.server.routing.router import Router
from broker.server.services import BulkReads, Document
from broker.server.tracing.tracing import Tracing


@dataclass(slots=True)
class Caller:
    """A client that wants to connect, as described to the authorization service."""

    client: Document
    connect: Document
    tls: Document | None


# Arguments: client id, account to report it in, the user that the client proved to be, the reason.
OnRefusal = Callable[[int, Account, Identity | None, str], None]


class CalloutAuthenticator(Protocol):
    """Authenticates clients in place of the configured users (authorization callout)."""

    on_refusal: OnRefusal

    async def identify(self, given: Credentials, caller: Caller) -> Identity | None: ...


class FetchedAccounts(Protocol):
    """Accounts whose JWTs are fetched from a resolver when one of their users logs in."""

    def lacks(self, account: str) -> bool: ...

    async def fetch(self, account: str, address: str, *, wanted: Callable[[], bool]) -> None:
        """Fetch the account's JWT, unless `wanted()` is False by then (the client has gone).
        Afterwards the account is known, if it exists."""


@dataclass(slots=True)
class ClientContext:
    """What all connections of one server share."""

    settings: ServerSettings
    info: ClientInfo
    urls: ClientUrls
    connections: Connections
    account: Callable[[str], Account]
    router: Router
    turns: FairQueue
    flushes: FlushQueue
    tracing: Tracing
    spawn: Spawn
    callout: CalloutAuthenticator
    passwords: PasswordChecks[Identity | None]
    bulk_reads: BulkReads | None = None  # None: SCAN is an unknown operation
    fetched: FetchedAccounts | None = None  # None: all accounts are known


class ListenerProfile:
    """Do not cache what its methods return: a reload may change it."""

    kind = "nats"  # the type that /connz shows
    mark = "cid"  # prefix of the client's number in the log
    connection_type = STANDARD  # compared with a user's `allowed_connection_types`
    internal = False  # the server's own client: not counted, listed, limited or restricted

    def __init__(self, context: ClientContext) -> None:
        self.context = context

    @property
    def authenticator(self) -> Authenticator:
        return self.context.settings.authenticator

    @property
    def auth_timeout_s(self) -> float:
        return self.context.settings.auth_timeout_s

    @property
    def ping_interval_s(self) -> float:
        return self.context.settings.options.ping.interval_ns / 1e9

    @property
    def tls(self) -> tuple[TlsOptions, ssl.SSLContext] | None:
        """The TLS to start on the open socket, after INFO or (handshake_first) before it."""
        settings = self.context.settings
        options, context = settings.options.tls, settings.tls_context
        return None if options is None or context is None else (options, context)

    @property
    def maps_certificates(self) -> bool:
        """Whether users are identified by the client's certificate (`verify_and_map`)."""
        tls = self.context.settings.options.tls
        return tls is not None and tls.verify_and_map

    def info(self) -> Document:
        """A new copy of the INFO fields that all clients of this listener share."""
        return dict(self.context.info.shared)

    def connect_urls(self, *, ldm: bool = False) -> list[str]:
        return self.context.urls.all(ldm=ldm)

    def info_line(
        self,
        *,
        cid: int,
        host: str,
        payload_max: int,
        account: str = "",
        ldm: bool = False,
        nonce: str = "",
    ) -> bytes:
        """The line for one client; `account` is named once the client has connected."""
        document = self.info()
        if nonce:
            document["nonce"] = nonce
        document["client_id"] = cid
        if not self.context.settings.options.proxy_protocol:  # that IP is the load balancer's
            document["client_ip"] = host
        if payload_max >= 0:
            document["max_payload"] = payload_max
        if account:
            document["connect_info"] = True
            document["remote_account"] = account
            if account == self.context.settings.options.system_account:
                document["acc_is_sys"] = True
        urls = self.connect_urls(ldm=ldm)
        if urls:
            document["connect_urls"] = urls
        if ldm:
            document["ldm"] = True
        return b"INFO " + msgspec.json.encode(document) + b" \r\n"
