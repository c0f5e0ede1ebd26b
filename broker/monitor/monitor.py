"""The monitor of one node: system account, events, user info and HTTP, built on a server.

Owns: the order in which they start and stop.
May not touch: the server, beyond its observer hooks and the tables it shows.
Spec: NATS monitoring endpoints and system account."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.monitor.documents.documents import Documents
from broker.monitor.http_server import HttpMonitor
from broker.monitor.observed import Observed, ObservedRuntime, ObservedServer
from broker.monitor.system.system_account import SystemAccount
from broker.monitor.system.user_info import UserInfo
from broker.server.process.tasks import Spawn
from broker.server.routing.account_table import AccountTable


class HookedServer(ObservedServer, Protocol):
    """A server, with the hook for new accounts."""

    @property
    def accounts(self) -> AccountTable: ...
    @property
    def spawn(self) -> Spawn: ...


class Monitor:
    """Call `start` once subscriptions are announced to peers, `open_http` after the client port is
    open."""

    def __init__(
        self,
        server: HookedServer,
        runtime: ObservedRuntime | None,
        reload: Callable[[], None],
    ) -> None:
        """`reload` raises ValueError with the reason."""
        self._server = server
        self.observed = Observed(server, runtime)
        self.documents = Documents(self.observed)
        self._system = SystemAccount(self.observed, self.documents, reload)
        self.events = self._system.events
        self.http: HttpMonitor | None = None
        server.connections.observers.append(self.events)
        server.leafs.observers.append(self.events)
        server.accounts.on_created(UserInfo(self.observed).serve)
        server.accounts.on_created(self._system.serve)

    def start(self) -> None:
        """Serve the system account and publish events."""
        self._system.start()

    def open_http(self) -> None:
        """Bind and listen. Raises StartFailed when the address is taken."""
        options = self._server.options.http
        if options is not None:
            self.http = HttpMonitor(self.observed, self.documents, options)
            self.http.open()

    def serve_http(self) -> None:
        """Answer requests."""
        if self.http is not None:
            self._server.spawn(self.http.serve(), name="monitor")

    async def stop_http(self) -> None:
        if self.http is not None:
            await self.http.stop()

    def stop(self) -> None:
        self.events.stop()
