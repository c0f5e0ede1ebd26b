"""One signed-in console: a client of this server, over a pipe inside the process.

Owns: the connection, its inbox, and the requests that wait for an answer.
May not touch: what the requests mean; the rules of the user hold as on the client port.
Spec: NATS client protocol.
Bounds: WAITING_MAX requests without an answer, PAYLOAD_MAX bytes each. While more than HELD_MAX
bytes of answers are on their way to the page, nothing more is read from the server: a page that
does not read is a slow consumer like any other."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from broker.config.options import TlsOptions
from broker.server.client.listener_profile import ListenerProfile
from broker.server.listeners.internal_client import connect_with

WAITING_MAX = 128
PAYLOAD_MAX = 64 * 1024
HELD_MAX = 256 * 1024
SIGN_IN_WITHIN_S = 10.0
ANSWER_WITHIN_S = 10.0
CREDENTIALS = ("user", "pass", "auth_token", "jwt", "nkey", "sig")


class RelayClosed(Exception):
    """The server closed the connection; str() is its reason."""


class RequestFailed(Exception):
    """A request without an answer; str() is the reason."""


class ConsoleProfile(ListenerProfile):
    """A client that came through the monitoring port: same users, same rules, no TLS of its own."""

    kind = "websocket"
    mark = "wid"
    connection_type = "WEBSOCKET"

    @property
    def tls(self) -> tuple[TlsOptions, ssl.SSLContext] | None:
        return None


class ConsoleRelay:
    """Connect, sign in, then request. `receive` must run as a task meanwhile."""

    def __init__(self, profile: ConsoleProfile, peername: tuple[str, int]) -> None:
        self._reader, self._writer = connect_with(profile, peername)
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"
        # By the last token of the reply: subject, answer.
        self._waiting: dict[bytes, tuple[str, asyncio.Future[bytes]]] = {}
        self._last = 0
        self.account = ""  # of the user, once signed in
        self._held = 0  # bytes of answers that the page has not taken yet
        self._room = asyncio.Event()
        self._room.set()

    async def info(self) -> dict[str, Any]:
        """The INFO of the server. Raises RelayClosed."""
        line = await self._line()
        if not line.startswith(b"INFO "):
            raise RelayClosed(_reason(line))
        return msgspec.json.decode(line[5:], type=dict[str, Any])

    async def sign_in(self, given: dict[str, str]) -> None:
        """Raises RelayClosed with the server's reason."""
        options: dict[str, Any] = {
            "verbose": False, "pedantic": False, "headers": True, "no_responders": True,
            "protocol": 1, "lang": "javascript", "name": "JetRaft console", "version": "1",
            **{key: given[key] for key in CREDENTIALS if given.get(key)},
        }  # fmt: skip
        sub = f"SUB {self._inbox}.* 1\r\nPING\r\n"
        self._writer.write(b"CONNECT " + msgspec.json.encode(options) + f"\r\n{sub}".encode())
        async with asyncio.timeout(SIGN_IN_WITHIN_S):
            while (line := await self._line()) != b"PONG":
                if line.startswith(b"-ERR"):
                    raise RelayClosed(_reason(line))
            self.account = (await self.info()).get(
                "remote_account", ""
            )  # sent after the first PONG

    async def receive(self) -> None:
        """Take answers until the server closes the connection. Raises RelayClosed."""
        while True:
            await self._room.wait()
            line = await self._line()
            words = line.split(b" ")
            if words[0] in (b"MSG", b"HMSG"):
                body = await self._reader.readexactly(int(words[-1]) + 2)
                headers = int(words[-2]) if words[0] == b"HMSG" else 0
                self._answered(words[1], body[:headers], body[headers:-2])
            elif line == b"PING":
                self._writer.write(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                self._refused(_reason(line))

    @asynccontextmanager
    async def request(self, subject: str, payload: bytes) -> AsyncIterator[bytes]:
        """The answer, which counts as held until the end of the block. Raises RequestFailed."""
        if len(self._waiting) >= WAITING_MAX or len(payload) > PAYLOAD_MAX:
            raise RequestFailed("too much at once")
        self._last += 1
        number = b"%d" % self._last
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = subject, answer
        reply = self._inbox.encode() + b"." + number
        head = b"PUB %b %b %d\r\n" % (subject.encode(), reply, len(payload))
        self._writer.write(head + payload + b"\r\n")
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                body = await answer
        except TimeoutError as error:
            raise RequestFailed("no answer within 10 seconds") from error
        else:
            yield body
        finally:
            self._waiting.pop(number, None)
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._hold(-len(answer.result()))

    def close(self) -> None:
        self._writer.close()

    def _answered(self, subject: bytes, headers: bytes, payload: bytes) -> None:
        _, answer = self._waiting.get(subject.rpartition(b".")[2], ("", None))
        if answer is None or answer.done():
            return
        if headers.startswith(b"NATS/1.0 503"):
            answer.set_exception(RequestFailed("nobody answers this request here"))
        else:
            answer.set_result(payload)
            self._hold(len(payload))

    def _hold(self, count: int) -> None:
        self._held += count
        if self._held > HELD_MAX:
            self._room.clear()
        else:
            self._room.set()

    def _refused(self, reason: str) -> None:
        """The rules of the user forbid a publish: requests with its subject fail at once."""
        for subject, answer in self._waiting.values():
            if not answer.done() and f'"{subject}"' in reason:
                answer.set_exception(RequestFailed(reason))

    async def _line(self) -> bytes:
        try:
            line = await self._reader.readline()
        except (ValueError, OSError) as error:
            raise RelayClosed(str(error)) from error
        if not line.endswith(b"\r\n"):
            raise RelayClosed("the server closed the connection")
        return line[:-2].rstrip(b" ")


def _reason(line: bytes) -> str:
    return line.removeprefix(b"-ERR ").strip(b"'").decode(errors="replace")
