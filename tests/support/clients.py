"""Official clients that are closed with the test that opened them, also when it fails.

Owns: the list of clients of the work that runs. `run` of `clusters` and of `server` closes them; a
client that a failed test left open would be found by the collector in the middle of another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import nats

CLOSE_S = 10.0
_opened: ContextVar[list[Any]] = ContextVar("opened")


@asynccontextmanager
async def closing_clients() -> AsyncIterator[None]:
    """Whatever becomes of the work inside, the clients that it opened are closed."""
    clients: list[Any] = []
    token = _opened.set(clients)
    try:
        yield
    finally:
        _opened.reset(token)
        async with asyncio.timeout(CLOSE_S):
            await asyncio.gather(*(one.close() for one in clients), return_exceptions=True)


async def open_client(servers: str | list[str], **settings: Any) -> Any:
    """`nats.connect`, inside `closing_clients` only."""
    opened = _opened.get()
    client = await nats.connect(servers, **settings)
    opened.append(client)
    return client
