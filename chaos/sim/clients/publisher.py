"""Publishers: one acknowledged publish after the other, each recorded.

Owns: the payloads; each is unique, so that a stored message names its publish.
May not touch: other workloads.
Checks: an acked publish is stored exactly once, at the sequence of its ack; no publish is stored
twice, also when a client repeats it with the same message id."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from chaos.sim.clients.client import SimClient, header_block
from chaos.sim.clients.workload import Scene
from chaos.sim.promises.stored import check_publishes, rows_of

STREAM = "PUBLISHED"
SUBJECTS = ("published.1", "published.2")
ANSWER_WITHIN_S = 4.0


class AckedPublishers:
    """Some publishes carry a message id; after no answer such a publish is repeated, as a careful
    application does."""

    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._publishers = rng.randint(1, 3)
        self._publishes = rng.randint(30, 80)
        self._gap_s = rng.choice((0.05, 0.2, 0.4))
        self._replicas = rng.choice((1, scene.replicas_max, scene.replicas_max))

    def streams(self) -> Sequence[dict[str, Any]]:
        return [{"name": STREAM, "subjects": ["published.*"], "num_replicas": self._replicas}]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._publishers):
                tasks.create_task(self._publisher(self._scene.client(f"publisher-{number}")))

    async def _publisher(self, client: SimClient) -> None:
        rng = self._scene.rng
        for number in range(self._publishes):
            await self._publish_one(client, number)
            await asyncio.sleep(self._gap_s * rng.random())

    async def _publish_one(self, client: SimClient, number: int) -> None:
        rng, journal = self._scene.rng, self._scene.journal
        payload = f"{client.name}-{number}".encode()
        headers = header_block(Nats_Msg_Id=payload.decode()) if rng.random() < 0.5 else b""
        payload += b"." * rng.choice((0, 0, 0, 40, 2000))
        subject = rng.choice(SUBJECTS)
        for attempt in range(3 if headers else 1):
            operation = journal.invoke(
                client.name,
                "publish",
                stream=STREAM,
                subject=subject,
                payload=payload,
                attempt=attempt,
            )
            try:
                answer = await client.request(
                    subject.encode(), payload, headers=headers, timeout_s=ANSWER_WITHIN_S
                )
            except TimeoutError:
                continue
            body = {"error": answer.status} if answer.status else json.loads(answer.data)
            if "error" in body:
                journal.failed(operation, error=body["error"])
                continue
            duplicate = body.get("duplicate", False)
            if duplicate:
                self._scene.mark("publish acked as a duplicate")
            journal.ok(operation, seq=body["seq"], duplicate=duplicate)
            return

    def check(self) -> None:
        rows = rows_of(self._scene.replicas(STREAM))
        check_publishes(STREAM, self._scene.journal.of_kind("publish"), rows)
