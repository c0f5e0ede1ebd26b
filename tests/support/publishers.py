"""A publisher that goes on while nodes fail, and the check that nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from typing import Any

from nats.errors import Error as NatsError

from tests.support.clusters import eventually


class Publisher:
    """Publishes one after the other until it is stopped, and remembers what was acknowledged."""

    def __init__(
        self, client: Any, subject: str, *, timeout_s: float = 2.0, pause_s: float = 0.0
    ) -> None:
        self.acked: dict[int, bytes] = {}
        self.failed = 0  # without an answer in time
        self._timeout_s, self._pause_s = timeout_s, pause_s
        self._client, self._subject = client, subject
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            text = b"%d" % number
            try:
                ack = await self._client.jetstream().publish(
                    self._subject, text, timeout=self._timeout_s
                )
            except NatsError:
                self.failed += 1  # it may be stored or not
                continue
            assert ack.seq not in self.acked
            self.acked[ack.seq] = text
            await asyncio.sleep(self._pause_s)

    async def some_more(self, count: int = 20) -> None:
        wanted = len(self.acked) + count

        async def enough() -> bool:
            return len(self.acked) >= wanted

        await eventually(enough, "publishes are acknowledged")

    async def stop(self) -> dict[int, bytes]:
        self._stop.set()
        await self._task
        return self.acked


async def stored(client: Any, name: str, acked: dict[int, bytes]) -> None:
    """Every acknowledged message is stored under its sequence."""
    for seq, text in acked.items():
        message = await client.jetstream().get_msg(name, seq)
        assert message.data == text
