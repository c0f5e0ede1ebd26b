"""The WebSocket listener: its socket, its terms of upgrade, its authorization and INFO.

Owns: bind, listen and close of that port, and the sockets that have not been upgraded yet.
May not touch: frames, and connections once they are made.
Spec: nats-server, `websocket` block. Bound: at most WAITING_MAX sockets may wait for their
upgrade; further ones are aborted."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from http import HTTPStatus

from broker.accounts.authentication import Authenticator
from broker.accounts.identity import Credentials
from broker.config.options import Authorization, Options, TlsOptions, WebSocketOptions
from broker.server.client.connection import Connection
from broker.server.client.listener_profile import ClientContext, ListenerProfile
from broker.server.client.tls import load_context, renew
from broker.server.listeners.framed_transport import FramedConnection
from broker.server.listeners.websocket import WebSocket
from broker.server.process.listening import ListeningPort, advertised
from broker.server.process.log import logger
from broker.server.routing.fair_queue import FairQueue
from broker.server.services import Document
from broker.wire.upgrade import Terms, Upgrade, UpgradeRefused, parse_origin
from broker.wire.websocket import Deflater

HANDSHAKE_SECONDS = 10.0  # when the configuration sets none
WAITING_MAX = 4096


LeafConnections = Callable[[asyncio.AbstractEventLoop, bool], FramedConnection]


class WebSocketListener(ListenerProfile):
    """Bound before anything else starts; listens and closes together with the client port."""

    kind = "websocket"
    mark = "wid"
    connection_type = "WEBSOCKET"

    def __init__(self, context: ClientContext, options: WebSocketOptions) -> None:
        super().__init__(context)
        self.options = options
        self.deflater = Deflater() if options.compression else None
        self.handshake_s = options.handshake_timeout_ns / 1e9 or HANDSHAKE_SECONDS
        self.waiting: set[WebSocket] = set()  # sockets that have not been upgraded
        self.terms = terms(options)
        self._context = None if options.tls is None else load_context(options.tls)
        self._port = ListeningPort("websocket port")
        self._authenticator: Authenticator | None = None
        self.port = 0
        # Set if leaf nodes may connect here: creates the connection of one. The second argument
        # says whether its frames are compressed.
        self.leaf_connection: LeafConnections | None = None
        self.reconfigure(context.settings.options)

    @property
    def scheme(self) -> str:
        return "ws" if self._context is None else "wss"

    # -- life -------------------------------------------------------------------------------

    def bind(self) -> None:
        """Raises StartFailed."""
        self.port = self._port.bind(self.options.host, self.options.port)

    async def listen(self) -> None:
        """Raises StartFailed."""
        loop, tls = asyncio.get_running_loop(), self.options.tls
        await self._port.listen(
            lambda: WebSocket(self, loop),
            tls=self._context,
            handshake_s=None if tls is None else tls.timeout_ns / 1e9,
        )
        logger.info("Listening for websocket clients on %s://%s", self.scheme, self._port.address)
        if self._context is None:
            logger.warning("Websocket not configured with TLS. DO NOT USE IN PRODUCTION!")

    def close(self) -> None:
        self._port.close()
        for one in list(self.waiting):
            one.abort_upgrade()

    def reconfigure(self, options: Options) -> None:
        """A reload may change everything but the port and whether it is encrypted
        (process/reload.py). The server has checked that the certificates can be read."""
        new = options.websocket or self.options
        if new.tls is not None and self._context is not None:
            renew(self._context, new.tls)
        if new.compression and self.deflater is None:
            self.deflater = Deflater()
        self.options = new
        self.handshake_s = new.handshake_timeout_ns / 1e9 or HANDSHAKE_SECONDS
        self.terms = terms(new)
        own = own_authorization(self.options, options.authorization)
        self._authenticator = None if own is None else Authenticator(own)

    # -- upgrades ---------------------------------------------------------------------------

    @property
    def crowded(self) -> bool:
        return len(self.waiting) >= WAITING_MAX

    @property
    def max_payload(self) -> int:
        return self.context.settings.options.limits.max_payload

    @property
    def turns(self) -> FairQueue:
        return self.context.turns

    def check_path(self, path: str) -> None:
        """Raises UpgradeRefused for the paths of protocols that are not served here."""
        for name in ("leafnode", "mqtt"):
            served = name == "leafnode" and self.leaf_connection is not None
            if path.endswith(f"/{name}") and not served:
                raise UpgradeRefused(f"{name} websocket endpoint not enabled", HTTPStatus.NOT_FOUND)

    def connection(self, agreed: Upgrade, loop: asyncio.AbstractEventLoop) -> FramedConnection:
        if agreed.path.endswith("/leafnode") and self.leaf_connection is not None:
            return self.leaf_connection(loop, agreed.compression)

        def cookie(name: str) -> str:
            return agreed.cookies.get(name, "") if name else ""

        options = self.options
        brought = Credentials(
            user=cookie(options.user_cookie),
            password=cookie(options.pass_cookie),
            token=cookie(options.token_cookie),
            jwt=cookie(options.jwt_cookie),
        )
        return Connection(self, loop, brought)

    # -- what connections ask ---------------------------------------------------------------

    @property
    def maps_certificates(self) -> bool:
        return self.options.tls is not None and self.options.tls.verify_and_map

    @property
    def authenticator(self) -> Authenticator:
        return self._authenticator or self.context.settings.authenticator

    @property
    def auth_timeout_s(self) -> float:
        own_ns = self.options.auth_timeout_ns
        return self.context.settings.auth_timeout_s if own_ns is None else own_ns / 1e9

    @property
    def ping_interval_s(self) -> float:
        return self.options.ping_interval_ns / 1e9 or super().ping_interval_s

    @property
    def tls(self) -> tuple[TlsOptions, ssl.SSLContext] | None:
        return None  # TLS lies below HTTP here

    def info(self) -> Document:
        document = super().info()
        for name in ("tls_required", "tls_available", "auth_required"):
            document.pop(name, None)
        document["host"], document["port"] = self.options.host, self.port
        if self._context is not None:
            document["tls_required"] = document["tls_available"] = True
        if self.authenticator.announced or self._authenticator is not None:
            document["auth_required"] = True
        return document

    def own_urls(self) -> list[str]:
        """host:port forms that peers tell their WebSocket clients."""
        return advertised(self.options.host, self.port, self.options.advertise)

    def connect_urls(self, *, ldm: bool = False) -> list[str]:
        return self.context.urls.all_websocket(ldm=ldm)


def terms(options: WebSocketOptions) -> Terms:
    return Terms(
        secure=options.tls is not None,
        same_origin=options.same_origin,
        origins=frozenset(parse_origin(one) for one in options.allowed_origins),
        compression=options.compression,
        headers=tuple(options.headers.items()),
    )


def own_authorization(options: WebSocketOptions, common: Authorization) -> Authorization | None:
    """The authorization of this port; None: it uses that of the client port."""
    if options.user or options.token:
        return Authorization(user=options.user, password=options.password, token=options.token)
    if options.no_auth_user:
        return Authorization(
            users=common.users,
            default_permissions=common.default_permissions,
            no_auth_user=options.no_auth_user,
        )
    return None
