"""The HTTP monitor: the documents about the running server, and /metrics.

Owns: the HTTP listener and what its paths answer.
May not touch: the server's state; the documents read it. Connections (plain_requests.py, and
full_http.py for the console and whatever else is asked).
Bounds: CONNECTIONS_MAX connections, then the oldest is closed; ASKED_WITHIN_SECONDS for a first
request; MADE_MAX documents are made at a time, in steps and in turns of their own; UNSENT_MAX bytes
of long documents are being sent, each for SENT_WITHIN_SECONDS at most.
Spec: NATS monitoring endpoints. Opened after the client port, so that a 200 means that clients can
connect."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from broker.config.options import Http
from broker.monitor.documents.documents import Documents, at_once
from broker.monitor.documents.interpreter import stacks, variables
from broker.monitor.documents.json_text import json_text
from broker.monitor.documents.query import BadQuery
from broker.monitor.full_http import FullHttp
from broker.monitor.http_connections import MonitorDoor, SendBudget
from broker.monitor.observed import Observed
from broker.monitor.plain_requests import FullConnection, HttpAnswer, MonitorPort, PlainConnection
from broker.server.process.listening import BACKLOG, bind, join_host_port
from broker.server.process.log import logger
from broker.server.services import Document, Query
from broker.subjects import Steps

if TYPE_CHECKING:
    from broker.monitor.documents.metrics import Metrics

T = TypeVar("T")
Make = Callable[[Query], Awaitable[HttpAnswer]]

HEADERS = {"Access-Control-Allow-Origin": "*"}
MADE_MAX = 2
UNSENT_MAX = 32 << 20
TURNS, HEALTH_TURNS = "HTTP monitor", "HTTP health"  # in the fair queue, beside the accounts


class HttpMonitor:
    """One HTTP listener. `port` is the bound one."""

    def __init__(self, observed: Observed, documents: Documents, options: Http) -> None:
        self._observed = observed
        self._options = options
        self._socket: socket.socket | None = None
        self._documents = documents
        self._numbers: Metrics | None = None  # made by the first scrape: its import is slow
        self._door = MonitorDoor()
        self._made = asyncio.Semaphore(MADE_MAX)
        budget = SendBudget(UNSENT_MAX)
        base = options.base_path.rstrip("/")
        self._full = FullHttp(observed, base, self._door, budget)
        self._shared = MonitorPort(
            {base + path: make for path, make in self._answers().items()},
            HEADERS,
            self._door,
            budget,
            self._spawn,
            self._full_connection,
        )
        self._listener: asyncio.Server | None = None
        self.port = 0

    def open(self) -> None:
        """Bind and listen. Raises StartFailed when the address is taken."""
        options = self._options
        self._socket = bind(options.host, options.port, what="monitoring port")
        self._socket.listen(BACKLOG)
        self.port = self._documents.http_port = self._socket.getsockname()[1]
        scheme = "https" if options.tls else "http"
        logger.info("Starting %s monitor on %s", scheme, join_host_port(options.host, self.port))

    async def serve(self) -> None:
        """Accept requests; returns when they are being served."""
        if self._socket is None:
            return  # stopped
        context = self._observed.server.settings.tls_context if self._options.tls else None
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: self._door.entered(PlainConnection(self._shared)),
            sock=self._socket,
            ssl=context,
            backlog=BACKLOG,
        )

    async def stop(self) -> None:
        sock, self._socket = self._socket, None
        if self._listener is not None:
            self._listener.close()
        await self._full.stop()
        self._door.close_all()
        if sock is not None:
            sock.close()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._observed.server.spawn(work, name=name)

    async def _full_connection(self) -> FullConnection:
        return await self._full.connection(self._shared.answers, self._shared.headers)

    def _answers(self) -> dict[str, Make]:
        documents = {**self._documents.by_name, "subscriptionsz": self._documents.by_name["subsz"]}
        answers = {f"/{name}": self._document(f"/{name}", one) for name, one in documents.items()}
        answers["/debug/vars"] = self._document("/debug/vars", lambda _: at_once(variables()))
        answers |= {"/healthz": self._healthz, "/metrics": self._metrics, "/stacksz": self._stacks}
        return answers

    def _document(self, path: str, make: Callable[[Query], Steps[Document]]) -> Make:
        async def answer(query: Query) -> HttpAnswer:
            self._count(path)
            try:
                return HttpAnswer(await self._run(self._body(make(query))))
            except BadQuery as error:
                return HttpAnswer(f"{error}\n".encode(), "text/plain; charset=utf-8", 400)

        return answer

    def _body(self, made: Steps[Document]) -> Steps[bytes]:
        document = yield from made
        return (yield from json_text(document, indent=2))

    async def _run(self, steps: Steps[T]) -> T:
        async with self._made:
            return await self._observed.server.turns.run(steps, TURNS)

    def _count(self, path: str) -> None:
        requests = self._documents.requests
        requests[path] = requests.get(path, 0) + 1

    async def _healthz(self, query: Query) -> HttpAnswer:
        self._count("/healthz")
        # Not behind long documents: an orchestrator that gets no answer restarts the node.
        turns = self._observed.server.turns
        code, document = await turns.run(self._documents.healthz(query), HEALTH_TURNS)
        return HttpAnswer(msgspec.json.encode(document), status=code)

    async def _stacks(self, _: Query) -> HttpAnswer:
        self._count("/stacksz")
        return HttpAnswer(stacks().encode(), "text/plain; charset=utf-8")

    async def _metrics(self, _: Query) -> HttpAnswer:
        if self._numbers is None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, import_module, "broker.monitor.documents.metrics")
        from broker.monitor.documents.metrics import CONTENT_TYPE, Metrics

        if self._numbers is None:
            self._numbers = Metrics(self._observed)
        return HttpAnswer(await self._run(self._numbers.text()), CONTENT_TYPE)
