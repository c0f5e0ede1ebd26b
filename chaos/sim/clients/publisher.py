"""A publisher: one acknowledged publish after the other, each recorded.

Owns: the payloads of one client; each is unique, so that a stored message names its publish.
May not touch: other clients."""

from __future__ import annotations

import asyncio
import json
from random import Random

from chaos.sim.clients.client import SimClient, header_block
from chaos.sim.clients.journal import Journal


class AckedPublisher:
    """Some publishes carry a message id; after no answer such a publish is repeated, as a careful
    application does."""

    def __init__(
        self, client: SimClient, journal: Journal, rng: Random, *, stream: str, subjects: list[str]
    ) -> None:
        self.done = False
        self._client = client
        self._journal = journal
        self._rng = rng
        self._stream = stream
        self._subjects = subjects
        self._count = 0

    async def run(self, publishes: int, *, gap_s: float) -> None:
        for _ in range(publishes):
            await self._publish_one()
            await asyncio.sleep(gap_s * self._rng.random())
        self.done = True

    async def _publish_one(self) -> None:
        self._count += 1
        payload = f"{self._client.name}-{self._count}".encode()
        payload += b"." * self._rng.choice((0, 0, 0, 40, 2000))
        subject = self._rng.choice(self._subjects)
        with_id = self._rng.random() < 0.5
        attempts = 3 if with_id else 1
        headers = header_block(Nats_Msg_Id=f"{self._client.name}-{self._count}") if with_id else b""
        for attempt in range(attempts):
            operation = self._journal.invoke(
                self._client.name,
                "publish",
                stream=self._stream,
                subject=subject,
                payload=payload,
                msg_id=with_id,
                attempt=attempt,
            )
            try:
                answer = await self._client.request(
                    subject.encode(), payload, headers=headers, timeout_s=4.0
                )
            except TimeoutError:
                continue
            if answer.status:
                self._journal.failed(operation, status=answer.status)
                continue
            body = json.loads(answer.data)
            if "error" in body:
                self._journal.failed(operation, error=body["error"])
                continue
            self._journal.ok(operation, seq=body["seq"], duplicate=body.get("duplicate", False))
            return
