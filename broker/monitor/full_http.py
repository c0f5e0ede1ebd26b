"""The HTTP of aiohttp, for all requests that are not plain: the console above all.

Owns: aiohttp's application, its paths, and when aiohttp is imported.
May not touch: what is in the documents; which connections come here (plain_requests.py).
aiohttp takes longer to import than the whole server to start, and a fifth of the memory of an idle
node: it is imported, in a thread, when the first such request arrives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from broker.monitor.http_connections import MonitorDoor, SendBudget
from broker.monitor.observed import Observed
from broker.monitor.plain_requests import IDLE_SECONDS, SHORT, Answers, FullConnection, HttpAnswer
from broker.server.services import Query

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Middleware

Handler: TypeAlias = "Callable[[web.Request], Awaitable[web.StreamResponse]]"

SHUTDOWN_SECONDS = 0.5


class FullHttp:
    """One per monitoring port. `connection` makes one that is given a socket of that port."""

    def __init__(
        self, observed: Observed, base: str, door: MonitorDoor, budget: SendBudget
    ) -> None:
        """`base`: what all paths begin with."""
        self._observed = observed
        self._base = base
        self._door = door
        self._budget = budget
        self._runner: web.AppRunner | None = None
        self._starting = asyncio.Lock()

    async def connection(self, answers: Answers, headers: Mapping[str, str]) -> FullConnection:
        async with self._starting:
            if self._runner is None:
                self._runner = await self._started(answers, headers)
        server = self._runner.server
        assert server is not None, "set up"
        return server()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _started(self, answers: Answers, headers: Mapping[str, str]) -> web.AppRunner:
        loop = asyncio.get_running_loop()
        for name in ("aiohttp.web", "broker.monitor.console.routes"):
            await loop.run_in_executor(None, import_module, name)
        from aiohttp import web

        from broker.monitor.console.routes import ConsoleRoutes

        app = web.Application(middlewares=[self._watched()])
        for path, answer in answers.items():
            app.router.add_get(path, self._handler(answer, headers))
        ConsoleRoutes(self._observed).add_to(app.router, self._base)
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_SECONDS,
            keepalive_timeout=IDLE_SECONDS,
            logger=quiet_logger(),
        )
        await runner.setup()
        return runner

    def _watched(self) -> Middleware:
        """Tells the door about every request."""
        from aiohttp import web

        @web.middleware
        async def asked(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._door.asked(request.protocol)
            return await handler(request)

        return asked

    def _handler(
        self, make: Callable[[Query], Awaitable[HttpAnswer]], headers: Mapping[str, str]
    ) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            return await self._sent(request, await make(request.query), headers)

        return answer

    async def _sent(
        self, request: web.Request, answer: HttpAnswer, headers: Mapping[str, str]
    ) -> web.StreamResponse:
        """A long document is sent piece by piece, as fast as it is read."""
        from aiohttp import web

        fields, body = {**headers, "Content-Type": answer.kind}, answer.body
        if len(body) <= SHORT:
            return web.Response(status=answer.status, body=body, headers=fields)
        response = web.StreamResponse(status=answer.status, headers=fields)
        response.content_length = len(body)
        try:
            async with self._budget.sending(len(body)):
                await response.prepare(request)
                for first in range(0, len(body), SHORT):
                    await response.write(body[first : first + SHORT])
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return response


def quiet_logger() -> logging.Logger:
    """aiohttp's own, without what is not HTTP: its answer says so to whoever sent it. Otherwise
    anybody could fill the log with tracebacks."""
    found = logging.getLogger("aiohttp.server")
    found.addFilter(_failed_here)
    return found


def _failed_here(record: logging.LogRecord) -> bool:
    from aiohttp.http_exceptions import HttpProcessingError

    problem = record.exc_info[1] if record.exc_info else None
    return not isinstance(problem, HttpProcessingError)
