"""The HTTP monitor: the documents about the running server, and /metrics.

Owns: the HTTP listener, its connections, the paths and their error answers.
May not touch: the server's state; the documents read it.
Bounds: CONNECTIONS_MAX connections, then the oldest is closed; ASKED_WITHIN_SECONDS for a first
request; MADE_MAX documents are made at a time, in steps and in turns of their own; UNSENT_MAX bytes
of long documents are being sent, each for SENT_WITHIN_SECONDS at most.
Spec: NATS monitoring endpoints. Opened after the client port, so that a 200 means that clients can
connect. aiohttp takes longer to import than the whole server to start: the socket listens at once,
the import runs in a thread, and an earlier request waits in the backlog of the socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from broker.config.options import Http
from broker.monitor.console.routes import ConsoleRoutes
from broker.monitor.documents.documents import Documents
from broker.monitor.documents.json_text import json_text
from broker.monitor.documents.query import BadQuery
from broker.monitor.http_connections import MonitorDoor, SendBudget, quiet_logger
from broker.monitor.observed import Observed
from broker.server.process.listening import BACKLOG, bind, join_host_port
from broker.server.process.log import logger
from broker.server.services import Document, Query
from broker.subjects import Steps

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Middleware

    from broker.monitor.documents.metrics import Metrics

T = TypeVar("T")
Answer: TypeAlias = "Callable[[web.Request], Awaitable[web.StreamResponse]]"

HEADERS = {"Access-Control-Allow-Origin": "*"}
SHUTDOWN_SECONDS = 0.5
IDLE_SECONDS = 15.0  # for the next request; then the socket is closed
SENT_WITHIN_SECONDS = 10.0
MADE_MAX = 2
UNSENT_MAX = 32 << 20
SHORT = 64 << 10  # bytes of a document that are handed to the socket at once
TURNS, HEALTH_TURNS = "HTTP monitor", "HTTP health"  # in the fair queue, beside the accounts


class HttpMonitor:
    """One HTTP listener. `port` is the bound one."""

    def __init__(self, observed: Observed, documents: Documents, options: Http) -> None:
        self._observed = observed
        self._options = options
        self._runner: web.AppRunner | None = None
        self._socket: socket.socket | None = None
        self._documents = documents
        self._numbers: Metrics | None = None  # made by the first scrape: its import is slow
        self._door = MonitorDoor()
        self._made = asyncio.Semaphore(MADE_MAX)
        self._sending = SendBudget(UNSENT_MAX)
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
        """Import aiohttp and accept requests; returns when they are being served."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, import_module, "aiohttp.web")
        from aiohttp import web

        if self._socket is None:
            return  # stopped during the import
        app = web.Application(middlewares=[self._watched()])
        base = self._options.base_path.rstrip("/")
        for path, answer in self._answers().items():
            app.router.add_get(base + path, answer)
        ConsoleRoutes(self._observed).add_to(app.router, base)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_SECONDS,
            keepalive_timeout=IDLE_SECONDS,
            logger=quiet_logger(),
        )
        await self._runner.setup()
        context = self._observed.server.settings.tls_context if self._options.tls else None
        server = self._runner.server
        assert server is not None, "set up"
        self._listener = await loop.create_server(
            lambda: self._door.entered(server()), sock=self._socket, ssl=context, backlog=BACKLOG
        )

    async def stop(self) -> None:
        sock, self._socket = self._socket, None
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if sock is not None:
            sock.close()

    def _watched(self) -> Middleware:
        """Tells the door about every request."""
        from aiohttp import web

        @web.middleware
        async def asked(request: web.Request, handler: Answer) -> web.StreamResponse:
            self._door.asked(request.protocol)
            return await handler(request)

        return asked

    def _answers(self) -> dict[str, Answer]:
        documents = {**self._documents.by_name, "subscriptionsz": self._documents.by_name["subsz"]}
        answers = {f"/{name}": self._document(f"/{name}", one) for name, one in documents.items()}
        answers |= {"/healthz": self._healthz, "/metrics": self._metrics}
        return answers

    def _document(self, path: str, make: Callable[[Query], Steps[Document]]) -> Answer:
        async def answer(request: web.Request) -> web.StreamResponse:
            from aiohttp import web

            self._count(path)
            try:
                body = await self._run(self._body(make(request.query)))
            except BadQuery as error:
                return web.Response(status=400, text=f"{error}\n", headers=HEADERS)
            return await self._sent(request, body, "application/json")

        return answer

    def _body(self, made: Steps[Document]) -> Steps[bytes]:
        document = yield from made
        return (yield from json_text(document, indent=2))

    async def _run(self, steps: Steps[T]) -> T:
        async with self._made:
            return await self._observed.server.turns.run(steps, TURNS)

    async def _sent(self, request: web.Request, body: bytes, kind: str) -> web.StreamResponse:
        """A long document is sent piece by piece, as fast as it is read."""
        from aiohttp import web

        headers = {**HEADERS, "Content-Type": kind}
        if len(body) <= SHORT:
            return web.Response(body=body, headers=headers)
        response = web.StreamResponse(headers=headers)
        response.content_length = len(body)
        try:
            async with asyncio.timeout(SENT_WITHIN_SECONDS), self._sending.taken(len(body)):
                await response.prepare(request)
                for first in range(0, len(body), SHORT):
                    await response.write(body[first : first + SHORT])
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return response

    def _count(self, path: str) -> None:
        requests = self._documents.requests
        requests[path] = requests.get(path, 0) + 1

    async def _healthz(self, request: web.Request) -> web.Response:
        from aiohttp import web

        self._count("/healthz")
        # Not behind long documents: an orchestrator that gets no answer restarts the node.
        turns = self._observed.server.turns
        code, document = await turns.run(self._documents.healthz(request.query), HEALTH_TURNS)
        body = msgspec.json.encode(document)
        return web.Response(
            status=code, body=body, content_type="application/json", headers=HEADERS
        )

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        from broker.monitor.documents.metrics import CONTENT_TYPE, Metrics

        if self._numbers is None:
            self._numbers = Metrics(self._observed)
        body = await self._run(self._numbers.text())
        return await self._sent(request, body, CONTENT_TYPE)
