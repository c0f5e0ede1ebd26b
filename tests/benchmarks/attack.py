"""One attack under way: its clients, how it floods, and what it counts.

Owns: Attack, and the lines of messages that it sends.
May not touch: which attacks there are (attacks.py); anything but one account of the server."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from plain_client import PlainClient

USER, HASHED, SYSTEM = "attacker", "hashed", "system"
MONITOR, WEBSOCKET, LEAF = "http", "websocket", "leafnodes"  # doors beside the client port
Step = Callable[["Attack"], Awaitable[None]]


@dataclass(slots=True)
class Attack:
    port: int
    seconds: float
    replicas: int = 1  # of the streams that it creates
    ports: dict[str, int] = field(default_factory=dict)  # of the other doors
    until: float = 0.0
    done: int = 0  # requests answered, or messages sent
    clients: list[PlainClient] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        return time.perf_counter() < self.until

    async def client(self) -> PlainClient:
        opened = await PlainClient.open(self.port, USER)
        opened.replicas = self.replicas
        self.clients.append(opened)
        return opened

    async def flood(self, make: Callable[[int], bytes], *, connections: int = 2) -> None:
        """Send what `make` returns as fast as the server reads it."""

        async def one(number: int) -> None:
            client = await self.client()
            for at in itertools.count(number, connections):
                if not self.running or client.closed:
                    return
                await client.flood(make(at))
                self.done += 1

        await asyncio.gather(*(one(number) for number in range(connections)))

    async def requests(
        self, subject: Callable[[int], str], body: Callable[[int], object], *, under_way: int = 16
    ) -> None:
        """So many API requests at a time, each sent when an earlier one was answered."""
        client = await self.client()
        numbers = itertools.count()

        async def one() -> None:
            while self.running:
                at = next(numbers)
                await client.api(subject(at), body(at))
                self.done += 1

        await asyncio.gather(*(one() for _ in range(under_way)))


def publish(subject: str, payload: bytes, reply: bytes = b"") -> bytes:
    return b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), reply, len(payload), payload)


def publish_headers(subject: str, headers: bytes, payload: bytes) -> bytes:
    block = b"NATS/1.0\r\n" + headers + b"\r\n"
    return b"HPUB %s %d %d\r\n%s%s\r\n" % (
        subject.encode(), len(block), len(block) + len(payload), block, payload,
    )  # fmt: skip
