"""The receive buffer of a connection to an origin.

Owns: one buffer of bytes, so that a codec can read many messages from it in one call.
May not touch: what the bytes mean.
Bounds: a line is at most READ_LIMIT long; nothing is received before the buffer was consumed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from broker.cluster.origins.origin_errors import OriginLost

READ_LIMIT = 1 << 20


@dataclass(slots=True)
class ReceiveBuffer:
    reader: asyncio.StreamReader
    received: bytes = b""
    at: int = 0  # bytes before this offset were consumed

    async def line(self) -> bytes:
        """The next line without its end. Raises OriginLost."""
        searched = self.at
        while (end := self.received.find(b"\r\n", searched)) < 0:
            waiting = len(self.received) - self.at
            if waiting > READ_LIMIT:
                raise OriginLost("line too long")
            await self.more()
            searched = max(self.at + waiting - 1, self.at)
        line = self.received[self.at : end]
        self.at = end + 2
        return line

    async def exactly(self, size: int) -> bytes:
        """The next `size` bytes. Raises OriginLost."""
        begin, self.at = self.at, self.at + size
        missing = self.at - len(self.received)
        if missing <= 0:
            return self.received[begin : self.at]
        first = self.received[begin:]
        self.received, self.at = b"", 0
        try:
            return first + await self.reader.readexactly(missing)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise OriginLost("the origin closed the connection") from error

    async def more(self) -> None:
        """Wait until there are more bytes. Raises OriginLost."""
        try:
            chunk = await self.reader.read(READ_LIMIT)
        except ConnectionError as error:
            raise OriginLost("the origin closed the connection") from error
        if not chunk:
            raise OriginLost("the origin closed the connection")
        self.received = self.received[self.at :] + chunk if self.at < len(self.received) else chunk
        self.at = 0

    def pull(self) -> None:
        """Take what has already arrived, without waiting, unless the buffer has plenty."""
        arrived: bytearray = self.reader._buffer  # type: ignore[attr-defined]  # noqa: SLF001
        if arrived and len(self.received) - self.at < READ_LIMIT:
            self.received = self.received[self.at :] + bytes(arrived)
            self.at = 0
            arrived.clear()
            self.reader._maybe_resume_transport()  # type: ignore[attr-defined]  # noqa: SLF001
