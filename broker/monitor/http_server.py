"""The HTTP monitor: the documents about the running server, and /metrics.

Owns: the HTTP listener, the paths and their error answers.
May not touch: the server's state; the documents read it.
Spec: NATS monitoring endpoints. Opened after the client port, so that a 200 means that clients can
connect. aiohttp takes longer to import than the whole server to start: the socket listens at once,
the import runs in a thread, and an earlier request waits in the backlog of the socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from broker.config.options import Http
from broker.monitor.documents.documents import Documents
from broker.monitor.documents.query import BadQuery
from broker.monitor.observed import Observed
from broker.server.process.listening import BACKLOG, bind, join_host_port
from broker.server.process.log import logger
from broker.server.services import Document, Query

if TYPE_CHECKING:
    from aiohttp import web

Answer: TypeAlias = "Callable[[web.Request], Awaitable[web.StreamResponse]]"

HEADERS = {"Access-Control-Allow-Origin": "*"}
SHUTDOWN_SECONDS = 0.5
IDLE_SECONDS = 15.0  # for a whole request, or the next one; then the socket is closed


class HttpMonitor:
    """One HTTP listener. `port` is the bound one."""

    def __init__(self, observed: Observed, documents: Documents, options: Http) -> None:
        self._observed = observed
        self._options = options
        self._runner: web.AppRunner | None = None
        self._socket: socket.socket | None = None
        self._documents = documents
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
        app = web.Application()
        for path, answer in self._answers().items():
            app.router.add_get(self._options.base_path.rstrip("/") + path, answer)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_SECONDS,
            keepalive_timeout=IDLE_SECONDS,
        )
        await self._runner.setup()
        context = self._observed.server.settings.tls_context if self._options.tls else None
        site = web.SockSite(self._runner, self._socket, ssl_context=context, backlog=BACKLOG)
        await site.start()

    async def stop(self) -> None:
        sock, self._socket = self._socket, None
        if self._runner is not None:
            await self._runner.cleanup()
        if sock is not None:
            sock.close()

    def _answers(self) -> dict[str, Answer]:
        documents = {**self._documents.by_name, "subscriptionsz": self._documents.by_name["subsz"]}
        answers = {f"/{name}": self._document(f"/{name}", one) for name, one in documents.items()}
        answers |= {"/healthz": self._healthz, "/metrics": self._metrics, "/": self._index}
        return answers

    def _document(self, path: str, make: Callable[[Query], Document]) -> Answer:
        async def answer(request: web.Request) -> web.StreamResponse:
            from aiohttp import web

            self._count(path)
            try:
                document = make(request.query)
            except BadQuery as error:
                return web.Response(status=400, text=f"{error}\n", headers=HEADERS)
            body = msgspec.json.format(msgspec.json.encode(document), indent=2)
            return web.Response(body=body, content_type="application/json", headers=HEADERS)

        return answer

    def _count(self, path: str) -> None:
        requests = self._documents.requests
        requests[path] = requests.get(path, 0) + 1

    async def _healthz(self, request: web.Request) -> web.Response:
        from aiohttp import web

        self._count("/healthz")
        code, document = self._documents.healthz(request.query)
        body = msgspec.json.encode(document)
        return web.Response(
            status=code, body=body, content_type="application/json", headers=HEADERS
        )

    async def _metrics(self, _: web.Request) -> web.Response:
        from aiohttp import web

        from broker.monitor.documents.metrics import CONTENT_TYPE, Metrics

        body = Metrics(self._observed).text()
        return web.Response(body=body, headers={**HEADERS, "Content-Type": CONTENT_TYPE})

    async def _index(self, _: web.Request) -> web.Response:
        from aiohttp import web

        base = self._options.base_path.rstrip("/")
        names = [*self._documents.by_name, "healthz", "metrics"]
        links = "".join(f'<li><a href="{base}/{name}">{name}</a></li>' for name in names)
        page = f"<!doctype html><title>{self._observed.name}</title><ul>{links}</ul>"
        return web.Response(text=page, content_type="text/html", headers=HEADERS)
