"""A listening port for fake servers in tests; closing it closes every accepted connection.

Owns: its listening socket and every connection made to it.
asyncio's own server loses a connection that is accepted in the loop turn in which the server is
closed: the socket stays open until garbage collection, in the middle of another test."""

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
        """Accept no more connections; existing ones stay open."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def cut(self) -> None:
        """Abort every open connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        self.refuse()
        while self._serving:
            self.cut()  # repeat: a connection may have been accepted meanwhile
            await asyncio.wait(self._serving, timeout=0.01)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the client has gone already
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
