"""The core server: builds its tables and listeners and wires them.

Owns: only its parts. Each part owns one table: accounts, connections, INFO, client URLs,
listeners. Other modules are given the part they need.
May not touch: streams, Raft, the monitor; main.py adds them and decides the order of start and
stop.
Spec: NATS server configuration; nats-server, lame duck mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from broker.accounts import GLOBAL_ACCOUNT, Account
from broker.config.options import AccountOptions, Options
from broker.server.auth_callout import AuthCallout
from broker.server.client.close_reason import Reason
from broker.server.client.connections import Connections, OpenConnection
from broker.server.client.info import ClientInfo, ClientUrls
from broker.server.client.listener_profile import ClientContext
from broker.server.client.settings import ServerSettings
from broker.server.client.tls import load_context
from broker.server.leaf.leaf_nodes import LeafNodes
from broker.server.listeners.client_listener import ClientListener, PortListener
from broker.server.password_checks import PasswordChecks
from broker.server.process.identity import ServerIdentity
from broker.server.process.log import logger
from broker.server.process.loop_lag import LoopLag
from broker.server.process.tasks import Spawn
from broker.server.process.times import timestamp
from broker.server.routing.account_table import AccountTable
from broker.server.routing.fair_queue import FairQueue
from broker.server.routing.flush_queue import FlushQueue
from broker.server.routing.imports import Imports
from broker.server.routing.router import Router
from broker.server.tracing.tracing import Tracing
from broker.subjects import Steps

if TYPE_CHECKING:
    from broker.server.leaf.leaf_listener import LeafListener
    from broker.server.listeners.websocket_listener import WebSocketListener

CLOSE_PAUSE_SECONDS_MAX = 1.0
CLIENTS_AT_ONCE = 64  # clients that a reload checks in its own turn; the rest follow in later turns


def _cannot_restart(reason: str) -> None:
    logger.critical("%s: restart this node", reason)


class Server:
    """The plain NATS part of a node. `bind`, then `listen`; later `stop_accepting`, `close`."""

    def __init__(
        self,
        options: Options,
        spawn: Spawn,
        listener: Callable[[ClientContext], PortListener] = ClientListener,
    ) -> None:
        self.spawn = spawn
        self.settings = ServerSettings(options)
        self.identity = ServerIdentity.create(
            options.server_name, options.host, signs=options.authorization.has_callout
        )
        self.accounts = AccountTable(
            _accounts_of(options),
            cluster=options.cluster.name if options.cluster is not None else "",
        )
        for name in (
            GLOBAL_ACCOUNT,
            options.system_account,
            *(one.name for one in options.accounts),
        ):
            self.accounts.open(name)
        self.connections = Connections(self.settings)
        self.router = Router()
        self.turns = FairQueue()
        self._imports = Imports(
            self.accounts.open,
            self.router,
            _RequestingClients(self.connections, self.identity, self.settings),
        )
        self._imports.join(options.accounts)
        self.tracing = Tracing(
            self.router,
            self.accounts.open,
            system_account=options.system_account,
            server=lambda seq: self.identity.document(self.options, seq=seq, tags=False),
        )
        self.info = ClientInfo(self.settings, self.identity)
        self.urls = ClientUrls(self.settings, options.host)
        self.clients = ClientContext(
            settings=self.settings,
            info=self.info,
            urls=self.urls,
            connections=self.connections,
            account=self.accounts.open,
            router=self.router,
            turns=self.turns,
            flushes=FlushQueue(),
            tracing=self.tracing,
            spawn=spawn,
            callout=AuthCallout(self.router, self.accounts, self.settings, self.identity),
            passwords=PasswordChecks(),
        )
        self._listener = listener(self.clients)
        self.websocket: WebSocketListener | None = None
        self.leafs = LeafNodes()
        self.leaf_listener: LeafListener | None = None
        self.lag: LoopLag | None = None
        self.lame_duck = False
        # Restarts the process, for the given reason. Set by main.py.
        self.restart: Callable[[str], None] = _cannot_restart

    # -- what others ask --------------------------------------------------------------------

    @property
    def options(self) -> Options:
        """The options in force: a reload replaces them."""
        return self.settings.options

    @property
    def id(self) -> str:
        return self.identity.id

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def host(self) -> str:
        return self.identity.host

    @property
    def port(self) -> int:
        """The port of the client listener; 0 before `bind`."""
        return self._listener.port

    @property
    def leaf_port(self) -> int:
        """The port of the leaf node listener; 0: there is none."""
        return 0 if self.leaf_listener is None else self.leaf_listener.port

    def account(self, name: str) -> Account:
        return self.accounts.open(name)

    def client_urls(self) -> list[str]:
        """The URLs of this server (host:port) that peers send to their clients."""
        return self.urls.own()

    def ws_urls(self) -> list[str]:
        """The same for WebSocket clients."""
        return self.urls.own_websocket()

    def set_cluster_urls(self, urls: list[str], ws_urls: Sequence[str] = ()) -> None:
        """Client URLs of the peers, in a stable order. Clients are sent INFO only on a change."""
        if self.urls.set_peers(urls, ws_urls):
            self._update_info()

    def leaf_urls(self) -> list[str]:
        """Where leaf nodes of the cluster can connect to this server."""
        hidden = self.leaf_listener is None or self.urls.withdrawn
        return [] if hidden or self.leaf_listener is None else self.leaf_listener.own_urls()

    def set_leaf_urls(self, urls: list[str]) -> None:
        if self.leaf_listener is not None:
            self.leaf_listener.set_peer_urls(urls)

    def leave_urls(self) -> None:
        """Stop advertising this server: clients are sent only the URLs of its peers."""
        self.urls.withdrawn = True
        self._update_info()

    def _reconfigure_leafs(self, options: Options) -> None:
        if self.leaf_listener is not None:
            self.leaf_listener.reconfigure(options)
        elif options.leafnodes is not None:  # the first remote: there is no port
            from broker.server.leaf.leaf_listener import LeafListener

            self.leaf_listener = LeafListener(
                self.clients, self.identity, options.leafnodes, self.leafs
            )
            self.leaf_listener.dial()

    def _update_info(self, *, ldm: bool = False) -> None:
        for connection in list(self.connections.values()):
            connection.update_info(ldm=ldm)

    # -- start and stop ---------------------------------------------------------------------

    def bind(self) -> None:
        """Read certificates and bind the ports; no client is accepted. Raises StartFailed."""
        self.settings.load_certificates()
        self._listener.bind()
        self.info.port = self.urls.port = self._listener.port
        options = self.options.websocket
        if options is not None:
            from broker.server.listeners.websocket_listener import WebSocketListener

            self.websocket = WebSocketListener(self.clients, options)
            self.websocket.bind()
            self.urls.websocket = self.websocket.own_urls
        if self.options.leafnodes is not None:
            from broker.server.leaf.leaf_listener import LeafListener

            self.leaf_listener = LeafListener(
                self.clients, self.identity, self.options.leafnodes, self.leafs
            )
            self.leaf_listener.bind()
            if self.websocket is not None and self.options.leafnodes.port:
                self.websocket.leaf_connection = self.leaf_listener.framed
        self.info.refresh()

    async def listen(self) -> None:
        """Accept clients. Raises StartFailed."""
        await self._listener.listen()
        if self.websocket is not None:
            await self.websocket.listen()
        if self.leaf_listener is not None:
            await self.leaf_listener.listen()
        self.lag = LoopLag(asyncio.get_running_loop())
        self.lag.start()

    def announce(self) -> None:
        self._listener.announce()

    def stop_accepting(self) -> None:
        self._listener.close()
        if self.websocket is not None:
            self.websocket.close()
        if self.leaf_listener is not None:
            self.leaf_listener.stop_accepting()

    def pause_reading(self) -> None:
        """Stop reading from all clients."""
        for connection in self.connections.values():
            connection.pause_reading()

    def send_clients_away(self) -> None:
        """Half-close all client connections: what clients have sent is read until they close."""
        self._close_leafs()
        self.connections.leave_all(Reason.SERVER_SHUTDOWN)

    def _close_leafs(self) -> None:
        if self.leaf_listener is not None:
            self.leaf_listener.close()

    def close_clients(self) -> None:
        self._close_leafs()
        self.connections.close_all(Reason.SERVER_SHUTDOWN)

    def stop(self) -> None:
        if self.lag is not None:
            self.lag.stop()

    def withdraw(self) -> None:
        """Lame duck mode: no new clients, and this server is no longer among the client URLs."""
        self.lame_duck = self.urls.withdrawn = True
        self.stop_accepting()

    async def close_gradually(self) -> None:
        """Lame duck mode: notify the clients, wait, then close their connections one by one."""
        if not self.connections:
            return
        self._update_info(ldm=True)
        options = self.options.lame_duck
        await asyncio.sleep(options.grace_ns / 1e9)
        logger.info("Closing existing clients")
        remaining = list(self.connections.values())
        if not remaining:
            return
        seconds = (options.duration_ns - options.grace_ns) / 1e9
        pause = min(seconds / len(remaining), CLOSE_PAUSE_SECONDS_MAX)
        for connection in remaining:
            if not connection.closed:
                connection.close(Reason.SERVER_SHUTDOWN)
                await asyncio.sleep(pause)

    def reconfigure(self, options: Options) -> None:
        """Apply the settings that may change while running (process/reload.py). Raises
        StartFailed when the certificates cannot be read."""
        for block in (options.websocket, options.leafnodes, options.cluster):
            if block is not None and block.tls is not None:
                load_context(block.tls)  # may raise: before anything has changed
        self.settings.replace(options)
        self.accounts.reconfigure(_accounts_of(options))
        self._imports.join(options.accounts)
        if self.websocket is not None:
            self.websocket.reconfigure(options)
        self._reconfigure_leafs(options)
        self.info.refresh()
        walk = self._apply_to_clients(list(self.connections.values()))
        for _ in range(CLIENTS_AT_ONCE):
            if next(walk, True):
                return
        self.clients.spawn(self._go_on(walk), name="reload")

    def _apply_to_clients(self, connections: list[OpenConnection]) -> Steps[None]:
        """Check open connections against the new configuration, in steps. A reload that comes
        meanwhile checks them all again."""
        for connection in connections:
            if not connection.closed:
                connection.apply_limits(self.options.limits)
                connection.reauthenticate()
            yield

    async def _go_on(self, walk: Steps[None]) -> None:
        await self.turns.run(walk, "reload")


def _accounts_of(options: Options) -> tuple[AccountOptions, ...]:
    return (*options.accounts, AccountOptions(GLOBAL_ACCOUNT, mappings=options.mappings))


class _RequestingClients:
    """What an imported service may learn about the client that sent a request."""

    def __init__(
        self, connections: Connections, identity: ServerIdentity, settings: ServerSettings
    ) -> None:
        self._connections = connections
        self._identity = identity
        self._settings = settings

    def rtt_ns(self, cid: int) -> int:
        connection = self._connections.get(cid)
        return 0 if connection is None else round(connection.rtt_s * 1e9)

    def request_info(self, cid: int) -> dict[str, Any]:
        connection = self._connections.get(cid)
        if connection is None:
            return {}
        options, cluster = connection.connect, self._settings.options.cluster
        found = {
            "start": timestamp(connection.started),
            "host": connection.host,
            "id": connection.cid,
            "acc": connection.account.name,
            "user": connection.identity.user,
            "name": options.name,
            "lang": options.lang,
            "ver": options.version,
            "rtt": self.rtt_ns(cid),
            "server": self._identity.name,
            "cluster": "" if cluster is None else cluster.name,
            "jwt": options.jwt,
            "issuer_key": connection.identity.issuer,
            "name_tag": connection.identity.account_name,
            "tags": list(connection.identity.tags) or "",
            "kind": "Client",
            "client_type": "nats",
        }
        return {key: value for key, value in found.items() if value != ""}
