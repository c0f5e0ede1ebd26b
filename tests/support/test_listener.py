"""The port on which tests play servers leaves nothing open."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.support.listener import Listener


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    await reader.read()


@pytest.mark.parametrize("turns", range(4))
def test_who_comes_in_the_last_turn_is_closed(turns: int) -> None:
    """However far his connection had come: he hears the end, and waits for no collector."""

    async def body() -> None:
        listener = Listener(greet)
        with socket.create_connection(("127.0.0.1", listener.port), timeout=20) as guest:
            for _ in range(turns):
                await asyncio.sleep(0)
            await listener.close()
            assert await asyncio.to_thread(heard, guest) in (b"", b"hello")

    asyncio.run(body())


def heard(guest: socket.socket) -> bytes:
    """All he hears until the end; TimeoutError if there is none."""
    said = b""
    try:
        while chunk := guest.recv(64):
            said += chunk
    except ConnectionResetError:
        pass  # an end as well
    return said
