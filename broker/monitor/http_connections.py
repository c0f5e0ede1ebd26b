"""The connections of the monitoring port, and the bytes on their way to them.

Owns: which connections are open, which of them have never asked, and how much is being sent.
May not touch: what is asked.
The port has no authentication: whoever reaches it may open connections and never ask or never read.
Every connection takes a file descriptor that a client would need."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

CONNECTIONS_MAX = 512
ASKED_WITHIN_SECONDS = 15.0
SENT_WITHIN_SECONDS = 10.0


class HttpConnection(Protocol):
    """A connection, plain or of aiohttp."""

    def force_close(self) -> None: ...

    @property
    def transport(self) -> asyncio.Transport | None: ...


P = TypeVar("P", bound=HttpConnection)


class MonitorDoor:
    """Closes the oldest connection when there are too many, and who does not ask in time."""

    def __init__(self) -> None:
        self._open: dict[HttpConnection, asyncio.TimerHandle | None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def entered(self, connection: P, *, at: float | None = None) -> P:
        """A connection that is being accepted. `at`: when it must have asked, by the loop."""
        if len(self._open) >= CONNECTIONS_MAX:
            self._sweep()
        loop = asyncio.get_running_loop()
        at = loop.time() + ASKED_WITHIN_SECONDS if at is None else at
        self._open[connection] = loop.call_at(at, self._close, connection)
        return connection

    def asked(self, connection: HttpConnection) -> None:
        """It has sent a whole request: from now on it watches itself."""
        timer = self._open.get(connection)
        if timer is not None:
            timer.cancel()
            self._open[connection] = None

    def replaced(self, connection: HttpConnection, by: HttpConnection) -> None:
        """From now on the socket belongs to another one, with the time that is left to it."""
        timer = self._open.get(connection)
        self._forget(connection)
        self.entered(by, at=None if timer is None else timer.when())

    def close_all(self) -> None:
        for connection in list(self._open):
            self._close(connection)

    def _sweep(self) -> None:
        for one in [one for one in self._open if one.transport is None]:
            self._forget(one)
        while len(self._open) >= CONNECTIONS_MAX:
            self._close(next(iter(self._open)))

    def _close(self, connection: HttpConnection) -> None:
        self._forget(connection)
        if connection.transport is not None:
            connection.force_close()

    def _forget(self, connection: HttpConnection) -> None:
        timer = self._open.pop(connection, None)
        if timer is not None:
            timer.cancel()


class SendBudget:
    """So many bytes are being sent. A document that is longer than all of it is sent alone."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        while self._bytes and self._bytes + size > self._bytes_max:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size
            while self._waiting:
                turn = self._waiting.popleft()
                if not turn.done():
                    turn.set_result(None)

    @asynccontextmanager
    async def sending(self, size: int) -> AsyncIterator[None]:
        """The same, with the time that it may take. Raises TimeoutError."""
        async with asyncio.timeout(SENT_WITHIN_SECONDS), self.taken(size):
            yield
