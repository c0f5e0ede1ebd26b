"""The paths of the console on the monitoring port.

Owns: the page and its files, the headers they are served with, and the paths of its data.
May not touch: what the page does.
The page loads nothing from elsewhere and runs nothing that it did not load as a file: its content
security policy says so to the browser."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

from broker.monitor.console.nodes import nodes
from broker.monitor.console.sessions import ConsoleSessions
from broker.monitor.observed import Observed

if TYPE_CHECKING:
    from aiohttp import web

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
FRESH_S = 1.0  # the port has no authentication, and all servers of the cluster work for an answer
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class ConsoleRoutes:
    """Adds itself to the application of the monitor."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        server = observed.server
        self._sessions = ConsoleSessions(server.clients, admin=server.options.console.admin)
        assets = files(__package__) / "assets"
        self._turn = asyncio.Lock()
        self._nodes_body, self._asked_s = b"", float("-inf")
        self._assets = {one.name: one.read_bytes() for one in assets.iterdir() if one.is_file()}

    def add_to(self, router: web.UrlDispatcher, base: str) -> None:
        router.add_get(f"{base}/", self._page)
        router.add_get(f"{base}/console/nodes", self._nodes)
        router.add_get(f"{base}/console/session", self._sessions.handle)
        router.add_get(f"{base}/console/{{name}}", self._asset)

    async def _page(self, _: web.Request) -> web.Response:
        return self._file("index.html")

    async def _asset(self, request: web.Request) -> web.Response:
        return self._file(request.match_info["name"])

    def _file(self, name: str) -> web.Response:
        from aiohttp import web

        body = self._assets.get(name)
        if body is None:
            return web.Response(status=404, text="404: Not Found")
        kind = TYPES[name.rpartition(".")[2]]
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=HEADERS)

    async def _nodes(self, _: web.Request) -> web.Response:
        from aiohttp import web

        async with self._turn:
            now = asyncio.get_running_loop().time()
            if now >= self._asked_s + FRESH_S:
                self._nodes_body = msgspec.json.encode(await nodes(self._observed))
                self._asked_s = now
        body = self._nodes_body
        return web.Response(body=body, content_type="application/json", headers=HEADERS)
