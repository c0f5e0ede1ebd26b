"""The core server: listeners, accounts, connections, and their common life.

Owns: the set of connections, the accounts, INFO, start, lame duck and stop.
May not touch: streams or Raft; those come in as `services` (runtime.py).
Spec: core contract 1.4, 6.5, 8.2 and 8.4."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from broker.accounts import GLOBAL_ACCOUNT, Account
from broker.accounts.authentication import Authenticator
from broker.config.options import JETRAFT_VERSION, VERSION, Options
from broker.monitor.documents.documents import Documents
from broker.monitor.system.server_summary import ServerSummary
from broker.monitor.system.system_account import SystemAccount
from broker.monitor.system.user_info import UserInfo
from broker.server.client import listener
from broker.server.client.close_reason import Reason
from broker.server.client.connection import Connection
from broker.server.client.connection_record import ConnectionRecord
from broker.server.client.info import base_info
from broker.server.client.listener_profile import ListenerProfile
from broker.server.client.tls import load_context
from broker.server.process import pid_files as files
from broker.server.process.log import logger
from broker.server.process.loop_lag import LoopLag
from broker.server.process.server_id import server_id
from broker.server.routing.fair_queue import FairQueue
from broker.server.routing.imports import join_accounts
from broker.server.routing.router import Router
from broker.server.services import Document, JetStreamRuntime, StartFailed
from broker.server.tracing.tracing import Tracing

if TYPE_CHECKING:
    from broker.monitor.http_server import Monitor
    from broker.server.client.internal_client import InternalClient
    from broker.server.client.websocket_listener import WebSocketListener

DEFAULT_AUTH_SECONDS = 2.0
PEER_WAIT_SECONDS = 0.5  # the ports file waits this long for a first peer, if routes are given
CLOSE_PAUSE_SECONDS_MAX = 1.0
IDLE_WITHIN_S = 0.25  # a stopping server looks so long for a moment without open publishes
ANSWERED_WITHIN_S = 2.0  # and waits so long for their answers once it reads no more


@dataclass(slots=True)
class Counters:
    """Of the whole server; traffic of open connections is added when somebody asks."""

    total_connections: int = 0
    slow_consumers: int = 0
    stale_connections: int = 0
    stalls: int = 0
    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0


class Server:
    """Everything one process serves. Build it, `await start()`, later `await stop()`."""

    def __init__(self, options: Options, services: JetStreamRuntime | None = None) -> None:
        self.options = options
        self.services = services
        self.id = server_id()
        self.name = options.server_name or self.id
        self.accounts: dict[str, Account] = {}
        self.about = ServerSummary(self)
        self.documents = Documents(self)
        self.system = SystemAccount(self, self.documents)
        self.reload: Callable[[], None] = _nothing_to_reload  # raises ValueError
        self._user_info = UserInfo(self)
        for name in (GLOBAL_ACCOUNT, options.system_account):
            self.account(name)
        self.router = Router()
        self.turns = FairQueue()
        join_accounts(self)
        self.tracing = Tracing(self)
        self.connections: dict[int, Connection] = {}
        self.insiders: set[InternalClient] = set()  # connections of our own, that count as none
        self.history: deque[ConnectionRecord] = deque(maxlen=options.limits.max_closed_clients)
        self.counters = Counters()
        self.authenticator = Authenticator(options.authorization)
        self._entrance = ListenerProfile(self)
        self.door: WebSocketListener | None = None
        self.tls_context: ssl.SSLContext | None = None
        self.started = time.time()
        self.config_loaded = self.started
        self.host = options.host
        self.port = 0
        self.lame_duck = False
        self.stopping = False
        self.finished = asyncio.Event()
        self.lag: LoopLag | None = None
        self.monitor: Monitor | None = None
        self._cid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: asyncio.Server | None = None
        self._socket: socket.socket | None = None
        self._peer_urls: list[str] = []
        self._peer_ws_urls: list[str] = []
        self._peers_known = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ports_file = ""
        self.info: Document = {}

    # -- what connections ask ---------------------------------------------------------------

    @property
    def global_account(self) -> Account:
        return self.accounts[GLOBAL_ACCOUNT]

    def account(self, name: str) -> Account:
        found = self.accounts.get(name)
        if found is None:
            known = next((one for one in self.options.accounts if one.name == name), None)
            found = self.accounts[name] = Account(name, known)
            self._user_info.serve(found)
            self.system.serve(found)
        return found

    def next_cid(self) -> int:
        self._cid += 1
        return self._cid

    @property
    def auth_timeout_s(self) -> float:
        configured = self.options.authorization.timeout_ns
        if configured is not None:
            return configured / 1e9
        if self.options.tls is not None:
            return self.options.tls.timeout_ns / 1e9 + 1.0
        return DEFAULT_AUTH_SECONDS

    def admit(self, connection: Connection) -> None:
        """A socket was accepted."""
        limit = self.options.limits.max_connections
        full = limit < 0 or 0 < limit <= len(self.connections)
        self.connections[connection.cid] = connection
        self.counters.total_connections += 1
        connection.greet()
        if full:
            logger.error("%s - maximum connections exceeded", connection.label)
            connection.fail("maximum connections exceeded", Reason.MAX_CONNECTIONS)

    def forget(self, connection: Connection) -> None:
        """The connection has ended: keep its numbers and its record."""
        if self.connections.pop(connection.cid, None) is None:
            return
        if connection.account.connections.pop(connection.cid, None) is not None:
            connection.account.past.add(connection)
        counters = self.counters
        counters.in_msgs += connection.in_msgs
        counters.in_bytes += connection.in_bytes
        counters.out_msgs += connection.out_msgs
        counters.out_bytes += connection.out_bytes
        counters.stalls += connection.stalls
        last = connection.record()
        self.history.append(last)
        self.system.events.gone(connection, last)

    def traffic(self) -> Counters:
        """The counters of the whole server at this moment, open connections included."""
        total = replace(self.counters)
        for connection in self.connections.values():
            total.in_msgs += connection.in_msgs
            total.in_bytes += connection.in_bytes
            total.out_msgs += connection.out_msgs
            total.out_bytes += connection.out_bytes
            total.stalls += connection.stalls
        return total

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run it until it ends or the server stops; a failure is logged, never lost."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("Task %s failed", task.get_name(), exc_info=error)

    # -- INFO -------------------------------------------------------------------------------

    def refresh_info(self) -> None:
        """The part of INFO that all clients share; call when a source of it changed."""
        self.info = base_info(self)

    def info_line(
        self,
        connection: Connection,
        *,
        connect_info: bool = False,
        ldm: bool = False,
        nonce: str = "",
    ) -> bytes:
        document = connection.entrance.info()
        if nonce:
            document["nonce"] = nonce
        document["client_id"] = connection.cid
        document["client_ip"] = connection.host
        if connection.payload_max >= 0:
            document["max_payload"] = connection.payload_max
        if connect_info:
            document["connect_info"] = True
            document["remote_account"] = connection.account.name
            if connection.account.name == self.options.system_account:
                document["acc_is_sys"] = True
        urls = connection.entrance.connect_urls(ldm=ldm)
        if urls:
            document["connect_urls"] = urls
        if ldm:
            document["ldm"] = True
        return b"INFO " + msgspec.json.encode(document) + b" \r\n"

    def client_urls(self) -> list[str]:
        """What peers should tell their clients about this server (host:port)."""
        cluster = self.options.cluster
        if self.lame_duck or (cluster is not None and cluster.no_advertise):
            return []
        return listener.advertised(self.host, self.port, self.options.client_advertise)

    def ws_urls(self) -> list[str]:
        """The same for clients that speak WebSocket."""
        cluster = self.options.cluster
        hidden = self.lame_duck or (cluster is not None and cluster.no_advertise)
        return [] if hidden or self.door is None else self.door.own_urls()

    def connect_urls(self, *, ldm: bool = False) -> list[str]:
        return _with_own([] if ldm else self.client_urls(), self._peer_urls)

    def ws_connect_urls(self, *, ldm: bool = False) -> list[str]:
        return _with_own([] if ldm else self.ws_urls(), self._peer_ws_urls)

    def set_cluster_urls(self, urls: list[str], ws_urls: Sequence[str] = ()) -> None:
        """Client URLs of the peers, in a stable order; clients hear of real changes only."""
        cluster = self.options.cluster
        if cluster is not None and cluster.no_advertise:
            return
        if urls == self._peer_urls and list(ws_urls) == self._peer_ws_urls:
            return
        self._peer_urls = list(urls)
        self._peer_ws_urls = list(ws_urls)
        if urls:
            self._peers_known.set()
        self._tell_info()

    def _tell_info(self, *, ldm: bool = False) -> None:
        for connection in list(self.connections.values()):
            if connection.connect.protocol >= 1 and connection.first_pong_sent:
                connection.queue(self.info_line(connection, ldm=ldm))

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind, start the services, then open the doors. Raises StartFailed."""
        self._loop = asyncio.get_running_loop()
        options = self.options
        self._log_banner()
        if options.tls is not None:
            self.tls_context = load_context(options.tls)
        self._socket = listener.bind(options.host, options.port)
        self.port = self._socket.getsockname()[1]
        self._bind_door()
        self.refresh_info()
        if self.services is not None:
            await self.services.start(self)
            self.refresh_info()
        self.system.start()  # now that peers hear what is subscribed here
        await self._listen(self._socket)
        if self.door is not None:
            await self.door.listen()
        self.lag = LoopLag(self._loop)
        self.lag.start()
        if options.http is not None:
            from broker.monitor.http_server import Monitor  # only where it is wanted

            self.monitor = Monitor(self, options.http)
            self.monitor.open()
        shown = listener.join_host_port(options.host, self.port)
        logger.info("Listening for client connections on %s", shown)
        if options.tls is not None:
            logger.info("TLS required for client connections")
        if options.pid_file:
            files.write_pid(options.pid_file)
        logger.info("Server is ready")
        if self.monitor is not None:
            self.spawn(self.monitor.serve(), name="monitor")
        if options.ports_file_dir:
            await self._write_ports()

    def _bind_door(self) -> None:
        if self.options.websocket is not None:
            from broker.server.client.websocket_listener import (
                WebSocketListener,  # only where it is wanted
            )

            self.door = WebSocketListener(self, self.options.websocket)
            self.door.bind()

    async def _listen(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            sock.listen(listener.BACKLOG)
        except OSError as error:
            shown = listener.join_host_port(self.options.host, self.port)
            raise StartFailed(listener.refusal(shown, error)) from error
        self._listener = await loop.create_server(
            lambda: Connection(self, loop, self._entrance), sock=sock, backlog=listener.BACKLOG
        )

    def _log_banner(self) -> None:
        logger.info("Starting JetRaft")
        logger.info("  Version:  %s", JETRAFT_VERSION)
        logger.info("  Protocol: nats-server %s", VERSION)
        cluster = self.options.cluster
        if cluster is not None and cluster.name:
            logger.info("  Cluster:  %s", cluster.name)
        logger.info("  Name:     %s", self.name)
        logger.info("  ID:       %s", self.id)
        if self.options.config_file:
            logger.info(
                "Using configuration file: %s (%s)",
                self.options.config_file,
                self.options.config_digest,
            )

    async def _write_ports(self) -> None:
        cluster = self.options.cluster
        if cluster is not None and cluster.routes and not cluster.no_advertise:
            try:
                async with asyncio.timeout(PEER_WAIT_SECONDS):
                    await self._peers_known.wait()
            except TimeoutError:
                logger.debug("No route yet; writing the ports file without waiting longer")
        scheme = "tls" if self.options.tls is not None else "nats"
        found = {"nats": files.urls(scheme, self.options.host, self.port)}
        if self.door is not None:
            host = self.door.options.host
            found["websocket"] = files.urls(self.door.scheme, host, self.door.port)
        http = self.options.http
        if http is not None and self.monitor is not None:
            found["monitoring"] = files.urls(
                "https" if http.tls else "http", http.host, self.monitor.port
            )
        if self.services is not None and cluster is not None:
            for name, port in self.services.ports().items():
                found[name] = files.urls("nats", cluster.host, port)
        try:
            self._ports_file = files.write_ports(self.options.ports_file_dir, found)
        except OSError as error:
            logger.error("Error writing ports file: %s", error)

    async def stop(self) -> None:
        """Close everything; a second call does nothing. `finished` is set at the end."""
        if self.stopping:
            return
        self.stopping = True
        logger.info("Initiating Shutdown...")
        self.system.events.shutdown()
        self._close_listener()
        if self.services is not None:
            await self._answer_the_last(self.services)
            if self.services.serve_elsewhere():
                self._close_clients()  # there they lose no more time
            await self.services.stop()
        if self.monitor is not None:
            await self.monitor.stop()
        # Last: who watches us alone takes a closed connection for the end of the process.
        self._close_clients()
        ours = asyncio.current_task()
        for task in list(self._tasks):
            if task is not ours:
                task.cancel()
        self.system.events.stop()
        if self.lag is not None:
            self.lag.stop()
        for path in (self._ports_file, self.options.pid_file):
            if path:
                files.remove(path)
        logger.info("Server Exiting..")
        self.finished.set()

    async def _answer_the_last(self, services: JetStreamRuntime) -> None:
        """What was published here is answered before its client has to go. The best moment is one
        in which nothing is under way; if there is none, nothing more is read."""
        await services.hand_over()
        if await _in_time(services.all_answered, IDLE_WITHIN_S):
            return
        for connection in self.connections.values():
            connection.pause_reading()
        await _in_time(services.all_answered, ANSWERED_WITHIN_S)

    def _close_clients(self) -> None:
        for connection in [*self.connections.values(), *self.insiders]:
            connection.close(Reason.SERVER_SHUTDOWN)

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        elif self._socket is not None:
            self._socket.close()
        self._socket = None
        if self.door is not None:
            self.door.close()

    async def enter_lame_duck(self) -> None:
        """No new clients; the present ones are told, then closed one by one, then the end."""
        if self.lame_duck:
            return
        self.lame_duck = True
        logger.info("Entering lame duck mode, stop accepting new clients")
        self.system.events.lame_duck()
        self._close_listener()
        if self.services is not None:
            self.services.lame_duck()
        if self.connections:
            self._tell_info(ldm=True)
            lame_duck = self.options.lame_duck
            await asyncio.sleep(lame_duck.grace_ns / 1e9)
            logger.info("Closing existing clients")
            await self._close_gradually((lame_duck.duration_ns - lame_duck.grace_ns) / 1e9)
        await self.stop()

    async def _close_gradually(self, seconds: float) -> None:
        waiting = list(self.connections.values())
        if not waiting:
            return
        pause = min(seconds / len(waiting), CLOSE_PAUSE_SECONDS_MAX)
        for connection in waiting:
            if not connection.closed:
                connection.close(Reason.SERVER_SHUTDOWN)
                await asyncio.sleep(pause)

    def reconfigure(self, options: Options) -> None:
        """Take over the settings that may change while running (see reload.py)."""
        self.options = options
        self.authenticator = Authenticator(options.authorization)
        if options.tls is not None:
            self.tls_context = load_context(options.tls)
        if self.door is not None:
            self.door.reconfigure(options)
        self.config_loaded = time.time()
        self.refresh_info()
        for connection in list(self.connections.values()):
            connection.apply_limits(options.limits)
            if connection.connect_received or connection.authorized:
                connection.reauthenticate()


def _nothing_to_reload() -> None:
    raise ValueError("can only reload config when a file is provided using -c or --config")


async def _in_time(check: Callable[[], bool], seconds: float) -> bool:
    """Looks once per turn of the loop: the moment may be a short one."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0)
    return True


def _with_own(own: list[str], peers: list[str]) -> list[str]:
    """A server that knows no peers tells nothing: its clients know the way they came."""
    return own + [url for url in peers if url not in own] if peers else []
