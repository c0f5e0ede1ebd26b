"""The documents about a running server, by name: one source for HTTP and the system account.

Owns: which documents there are, and the fields that all of them begin with.
May not touch: how they are requested or sent.
Spec: NATS monitoring endpoints; NATS system account, $SYS.REQ.SERVER."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from broker.monitor.documents.accountz import accountz, accstatz
from broker.monitor.documents.connz import connz, subsz
from broker.monitor.documents.leafz import leafz
from broker.monitor.documents.varz import CpuMeter, varz
from broker.monitor.observed import Observed
from broker.server.process.times import timestamp
from broker.server.services import Document, Query, has_flag
from broker.subjects import Steps

T = TypeVar("T")
Make = Callable[[Query], Steps[Document]]


class Documents:
    """One per server. Every entry of `by_name` makes its document in steps and may raise
    BadQuery."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        runtime = observed.runtime
        self.http_port = 0  # of the monitor, once it is bound
        self.cpu = CpuMeter()
        self.requests: dict[str, int] = {}  # per path of the monitor
        self.by_name: dict[str, Make] = {
            "varz": lambda _: self._varz(),
            "connz": lambda query: connz(observed, query),
            "subsz": lambda query: subsz(observed, query),
            "routez": lambda _: at_once(self._routez()),
            "gatewayz": lambda _: at_once({
                **self._head(), "outbound_gateways": {}, "inbound_gateways": {},
            }),
            "leafz": lambda query: at_once({**self._head(), **leafz(observed, query)}),
            "accountz": self._accountz,
            "accstatz": lambda query: accstatz(observed, unused=has_flag(query, "unused")),
            "jsz": self._jsz,
            "ipqueuesz": lambda _: at_once({}),  # queues between goroutines: there are none here
            "raftz": lambda query: at_once({}) if runtime is None else runtime.raftz(query),
        }  # fmt: skip

    def healthz(self, query: Query) -> Steps[tuple[int, Document]]:
        """The HTTP status and the document."""
        runtime = self._observed.runtime
        found: tuple[int, Document] = (200, {"status": "ok"})
        return at_once(found) if runtime is None else runtime.healthz(query)

    def _accountz(self, query: Query) -> Steps[Document]:
        return {**self._head(), **accountz(self._observed, query)}
        yield

    def _varz(self) -> Steps[Document]:
        requests, cpu = dict(self.requests), self.cpu.percent()
        return varz(self._observed, cpu=cpu, requests=requests, http_port=self.http_port)

    def _head(self) -> Document:
        return {"server_id": self._observed.id, "now": timestamp(time.time())}

    def _routez(self) -> Document:
        runtime = self._observed.runtime
        routes: Document = {"num_routes": 0, "routes": []}
        if runtime is not None:
            routes = runtime.routez()
        return {"server_name": self._observed.name, **self._head(), **routes}

    def _jsz(self, query: Query) -> Steps[Document]:
        runtime = self._observed.runtime
        if runtime is None:
            return {**self._head(), "disabled": True, "config": {}, "memory": 0, "storage": 0}
        found = yield from runtime.jsz(query)
        return {**self._head(), **found}


def at_once(made: T) -> Steps[T]:
    """A document that needs no steps."""
    return made
    yield
