"""A leaf node on a raw socket, for tests of the leaf node port."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from broker.server.server import Server
from tests.support.server import PATIENCE, RawClient


class RawLeaf(RawClient):
    """Speaks the leaf node protocol. What it has been told of is in `told`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.told: dict[bytes, bytes] = {}  # subject and queue -> weight

    @classmethod
    async def dial(cls, server: Server, **said: Any) -> RawLeaf:
        """Sends CONNECT; the answer is not read yet."""
        port = server.leaf_port
        leaf = cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**24))
        leaf.info = await leaf.read_info()
        document = {"version": "2.15.1", "headers": True, "protocol": 1, **said}
        leaf.send(b"CONNECT " + json.dumps(document).encode() + b"\r\n")
        return leaf

    @classmethod
    async def join(cls, server: Server, name: str = "L", **said: Any) -> RawLeaf:
        """A leaf node that has been admitted and knows our subscriptions."""
        said = {"name": name, "cluster": name, "remote_account": "$G", **said}
        leaf = await cls.dial(server, **said)
        leaf.info = await leaf.read_info()
        assert leaf.info["connect_info"] is True
        await leaf.settled()
        return leaf

    async def settled(self) -> list[bytes]:
        """What has come until now: interest is kept in `told`, the other lines are returned."""
        self.send(b"PING\r\n")
        others: list[bytes] = []
        while (line := await self.line()) != b"PONG\r\n":
            assert line, f"closed after {others!r}"
            if not self._noted(line):
                others.append(line)
        return others

    async def gets(self, expected: bytes) -> None:
        """These messages come next; interest may come between them."""
        got = b""
        while len(got) < len(expected):
            line = await self.line()
            assert line, f"closed after {got!r}"
            got += b"" if self._noted(line) else line
        assert got == expected

    def _noted(self, line: bytes) -> bool:
        word, _, rest = line.strip().partition(b" ")
        fields = rest.split(b" ")
        if word == b"LS+":
            self.told[b" ".join(fields[:2])] = fields[2] if len(fields) > 2 else b""
        elif word == b"LS-":
            del self.told[b" ".join(fields[:2])]
        return word in (b"LS+", b"LS-", b"PING")

    async def until_told(self, key: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            while key not in self.told:
                await self.settled()

    async def until_untold(self, key: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            while key in self.told:
                await self.settled()
