"""The WebSocket behind the console: sign in once, then requests as the signed-in user.

Owns: who may open such a session and how many there are; the JSON frames of a session.
May not touch: streams and consumers. A session can do what its user can do on the client port, less
what allowed.py leaves out.

Frames, one JSON object each. The server begins with {"nonce", "auth_required", "admin", "server"}.
The page answers {"login": {...}} and gets {"signed_in": true} or {"refused": reason}. Then it sends
{"id", "subject", "payload"} and gets {"id", "answer"} or {"id", "error"}.
Bounds: SESSIONS_MAX sessions, half of them for one account, FRAME_MAX bytes per frame. As many
again may be signing in, for SIGN_IN_WITHIN_S each; one more closes the oldest of them: nobody needs
credentials for that, so it must not keep out who has some."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from broker.config.options import Options
from broker.monitor.console.allowed import may_request
from broker.monitor.console.relay import ConsoleProfile, ConsoleRelay, RelayClosed, RequestFailed
from broker.server.client.listener_profile import ClientContext

if TYPE_CHECKING:
    from aiohttp import web

SESSIONS_MAX = 32
ACCOUNT_SESSIONS_MAX = 16  # of one account: it must not keep the others out
FRAME_MAX = 128 * 1024
SIGN_IN_WITHIN_S = 10.0
HEARTBEAT_S = 20.0
IN_FLIGHT_MAX = 64  # requests of one session; more wait in its socket

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Names that nobody on the Internet can point to an address of his choice.
_PRIVATE = (".localhost", ".local", ".internal", ".svc", ".lan", ".home.arpa", ".test")


class _Request(msgspec.Struct):
    id: int
    subject: str
    payload: str = ""


class _Login(msgspec.Struct):
    login: dict[str, str]


class ConsoleSessions:
    """One per monitoring port."""

    def __init__(self, clients: ClientContext, *, admin: bool) -> None:
        self._clients = clients
        self._admin = admin
        self._open: Counter[str] = Counter()  # by account
        self._signing_in: dict[int, web.Request] = {}  # by id(), the oldest first

    async def handle(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        settings = self._clients.settings
        anonymous = settings.authenticator.anonymous() is not None
        reason = refusal(settings.options, request, anonymous=anonymous)
        if reason is not None:
            return web.Response(status=403, text=f"{reason}\n")
        socket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, max_msg_size=FRAME_MAX)
        while len(self._signing_in) >= SESSIONS_MAX:
            oldest = self._signing_in.pop(next(iter(self._signing_in)))
            if oldest.transport is not None:
                oldest.transport.abort()
        self._signing_in[id(request)] = request
        try:
            await socket.prepare(request)
            await self._serve(socket, request)
        finally:
            self._signing_in.pop(id(request), None)
        return socket

    async def _serve(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        relay = ConsoleRelay(ConsoleProfile(self._clients), (request.remote or "", 0))
        try:
            if await self._signed_in(socket, relay):
                self._signing_in.pop(id(request), None)
                await self._serve_signed_in(socket, relay)
        finally:
            relay.close()
            await socket.close()

    async def _serve_signed_in(self, socket: web.WebSocketResponse, relay: ConsoleRelay) -> None:
        self._open[relay.account] += 1
        try:
            async with asyncio.TaskGroup() as tasks:
                receiving = tasks.create_task(self._receive(socket, relay), name="console")
                await self._requests(socket, relay, tasks)
                receiving.cancel()
        finally:
            self._open[relay.account] -= 1
            self._open += Counter()  # forgets accounts without sessions

    async def _signed_in(self, socket: web.WebSocketResponse, relay: ConsoleRelay) -> bool:
        try:
            info = await relay.info()
            hello = {
                "nonce": info.get("nonce", ""),
                # Not that of INFO: it is true where only some users have passwords.
                "auth_required": self._clients.settings.authenticator.anonymous() is None,
                "admin": self._admin,
                "server": info.get("server_name", ""),
            }
            await socket.send_bytes(msgspec.json.encode(hello))
            async with asyncio.timeout(SIGN_IN_WITHIN_S):
                message = await socket.receive()
            if not isinstance(message.data, str):
                return False
            login = msgspec.json.decode(message.data, type=_Login).login
            await relay.sign_in(login)
            if self._open.total() >= SESSIONS_MAX:
                raise RelayClosed(f"{SESSIONS_MAX} consoles are open already")
            if self._open[relay.account] >= ACCOUNT_SESSIONS_MAX:
                raise RelayClosed(f"{ACCOUNT_SESSIONS_MAX} consoles of this account are open")
        except (RelayClosed, TimeoutError, msgspec.DecodeError, RecursionError) as error:
            await socket.send_bytes(msgspec.json.encode({"refused": str(error) or "too late"}))
            return False
        await socket.send_bytes(msgspec.json.encode({"signed_in": True}))
        return True

    async def _receive(self, socket: web.WebSocketResponse, relay: ConsoleRelay) -> None:
        """Until the server closes the connection of this user: then the session ends."""
        try:
            await relay.receive()
        except (RelayClosed, asyncio.IncompleteReadError) as error:
            await socket.send_bytes(msgspec.json.encode({"refused": str(error)}))
            await socket.close()

    async def _requests(
        self, socket: web.WebSocketResponse, relay: ConsoleRelay, tasks: asyncio.TaskGroup
    ) -> None:
        slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        async for message in socket:
            if not isinstance(message.data, str):
                return
            try:
                asked = msgspec.json.decode(message.data, type=_Request)
            except (msgspec.DecodeError, RecursionError):
                return
            await slots.acquire()
            tasks.create_task(self._answer(socket, relay, asked, slots), name="console request")

    async def _answer(
        self,
        socket: web.WebSocketResponse,
        relay: ConsoleRelay,
        asked: _Request,
        slots: asyncio.Semaphore,
    ) -> None:
        try:
            if not may_request(asked.subject, admin=self._admin):
                raise RequestFailed("the console of this server may only look (console { admin })")
            async with relay.request(asked.subject, asked.payload.encode()) as answer:
                await _send(socket, {"id": asked.id, "answer": answer.decode(errors="replace")})
        except RequestFailed as error:
            await _send(socket, {"id": asked.id, "error": str(error)})
        finally:
            slots.release()


async def _send(socket: web.WebSocketResponse, frame: dict[str, Any]) -> None:
    """Returns when the page has taken most of it."""
    if not socket.closed:
        with suppress(ConnectionError):  # it has gone: the session ends by that
            await socket.send_bytes(msgspec.json.encode(frame))


def refusal(options: Options, request: web.Request, *, anonymous: bool) -> str | None:
    """Why nobody may sign in over this request; None: it is fine. `anonymous`: whether clients
    without credentials are admitted."""
    scheme, _, origin = request.headers.get("Origin", "").partition("://")
    # A page of another site, in the same browser.
    if scheme not in ("http", "https") or origin != request.host:
        return "the console answers its own page only"
    if anonymous and not _is_private(request.host):
        # Such a page again, whose name has come to mean an address of this server.
        return "without users the console is opened by address or by a local name"
    tls = options.tls
    if tls is not None and tls.verify:
        return "clients of this server need certificates, which the console cannot present"
    if tls is not None and not request.secure and request.remote not in _LOOPBACK:
        return "clients of this server need TLS: use the console over https_port"
    return None


def _is_private(authority: str) -> bool:
    """Whether a Host header names an address, or something that only this network knows."""
    try:
        name = (urlsplit(f"//{authority}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if "." not in name and ":" not in name:
        return bool(name)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.endswith(_PRIVATE)
    return True
