"""An HTTP proxy for tests: CONNECT with basic authentication, on loopback."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class HttpProxy:
    """`answer`: what it says instead of making a tunnel; then it closes the connection."""

    login: str = ""  # user:password
    answer: bytes = b""
    port: int = 0
    asked: list[str] = field(default_factory=list)  # request lines

    @asynccontextmanager
    async def running(self) -> AsyncIterator[HttpProxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            self.asked.append(head[0])
            shown = base64.b64encode(self.login.encode()).decode()
            if self.answer:
                writer.write(self.answer)
            elif self.login and f"Proxy-Authorization: Basic {shown}" not in head:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            else:
                host, _, port = head[0].split()[1].rpartition(":")
                there, back = await asyncio.open_connection(host, int(port))
                writer.write(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, back))
                    both.create_task(_copy(there, writer))
        except (OSError, asyncio.IncompleteReadError):
            return  # one side has gone
        finally:
            writer.close()


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            to.write(data)
            await to.drain()
    except OSError:
        return
    finally:
        to.close()
