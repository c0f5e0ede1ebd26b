"""The documents about a running server, by name: one source for HTTP and the system account.

Owns: which documents there are, and the head that all of them share.
May not touch: how they are asked for or sent.
Spec: core contract 7 and 9.2."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.monitor.documents.accountz import accountz
from broker.monitor.documents.connz import connz, subsz
from broker.monitor.documents.varz import CpuMeter, varz
from broker.server.process.times import timestamp
from broker.server.services import Document, Query

if TYPE_CHECKING:
    from broker.server.server import Server


class Documents:
    """One per server. Every entry of `by_name` may raise BadQuery."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.cpu = CpuMeter()
        self.requests: dict[str, int] = {}  # per path of the monitor
        self.by_name: dict[str, Callable[[Query], Document]] = {
            "varz": lambda _: varz(server, cpu=self.cpu.percent(), requests=dict(self.requests)),
            "connz": lambda query: connz(server, query),
            "subsz": lambda query: subsz(server, query),
            "routez": lambda _: self._routez(),
            "gatewayz": lambda _: {
                **self._head(), "outbound_gateways": {}, "inbound_gateways": {},
            },
            "leafz": lambda _: {**self._head(), "leafnodes": 0, "leafs": []},
            "accountz": lambda query: {**self._head(), **accountz(server, query)},
            "jsz": self._jsz,
            "ipqueuesz": lambda _: {},  # of what the reference has for its goroutines, nothing
            "raftz": lambda query: server.services.raftz(query) if server.services else {},
        }  # fmt: skip

    def healthz(self, query: Query) -> tuple[int, Document]:
        """The HTTP status that says the same, and the document."""
        services = self._server.services
        return (200, {"status": "ok"}) if services is None else services.healthz(query)

    def _head(self) -> Document:
        return {"server_id": self._server.id, "now": timestamp(time.time())}

    def _routez(self) -> Document:
        services = self._server.services
        routes: Document = {"num_routes": 0, "routes": []}
        if services is not None:
            routes = services.routez()
        return {"server_name": self._server.name, **self._head(), **routes}

    def _jsz(self, query: Query) -> Document:
        services = self._server.services
        if services is None:
            return {**self._head(), "disabled": True, "config": {}, "memory": 0, "storage": 0}
        return {**self._head(), **services.jsz(query)}
