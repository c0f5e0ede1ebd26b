"""A port on which a test plays a server: whoever was accepted is closed again at the end.

Owns: its listening socket and every connection made to it.
asyncio's own server forgets a connection that was accepted in the turn in which it is closed: the
socket stays open until it is collected, in the middle of another test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Listener:
    """Calls `handler` for each connection; the connection is closed when it returns."""

    def __init__(self, handler: Handler, *, port: int = 0) -> None:
        self._handler = handler
        self._socket: socket.socket | None = socket.create_server(("127.0.0.1", port))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        asyncio.get_running_loop().add_reader(self._socket, self._accept, self._socket)

    def refuse(self) -> None:
        """No more connections; those that stand go on."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def cut(self) -> None:
        """End every connection that stands."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        self.refuse()
        while self._serving:
            self.cut()  # a connection may have been made just now: again, until there is none
            await asyncio.wait(self._serving, timeout=0.01)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # gone before we came
        serving = asyncio.get_running_loop().create_task(self._serve(connection))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        self._writers.add(writer)
        try:
            await self._handler(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            self._writers.discard(writer)
