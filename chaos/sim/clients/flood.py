"""Publishers that do not wait: bursts without acks, faster than a stream can store them.

Owns: the payloads; each is unique.
May not touch: other workloads.
Checks: nothing is stored twice, nothing that nobody sent; the queues that the bursts fill stay
within their bounds (chaos/sim/broker/queue_bounds.py), and what follows a burst is acked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from chaos.sim.clients.publishing import publish_recorded
from chaos.sim.clients.workload import Scene, WorkClient
from chaos.sim.promises.stored import check_publishes, rows_of

STREAM: Final = "FLOODED"
PUBLISH: Final = "publish into a flood"
RETRY_S: Final = 0.05


class Flood:
    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._bursts = rng.randint(3, 8)
        self._burst = rng.randint(20, 120)
        self._gap_s = rng.choice((0.3, 1.0, 2.0))
        self._bytes = rng.choice((50, 400))
        self._replicas = rng.choice((1, scene.replicas_max, scene.replicas_max))

    def streams(self) -> Sequence[dict[str, Any]]:
        return [{"name": STREAM, "subjects": ["flooded"], "num_replicas": self._replicas}]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(2):
                tasks.create_task(self._publish(self._scene.client(f"flood-{number}")))

    async def _publish(self, client: WorkClient) -> None:
        rng, journal = self._scene.rng, self._scene.journal
        for burst in range(self._bursts):
            await client.until_connected()
            for number in range(self._burst):
                payload = f"{client.name}-{burst}-{number}-".encode().ljust(self._bytes, b".")
                journal.invoke(client.name, PUBLISH, subject="flooded", payload=payload)
                client.publish(b"flooded", payload)
            await asyncio.sleep(self._gap_s * 2 * rng.random())
        while True:
            payload = f"{client.name}-last-{len(journal.operations)}".encode()
            last = journal.invoke(client.name, PUBLISH, subject="flooded", payload=payload)
            if await publish_recorded(self._scene, client, last, "flooded", payload):
                return
            await asyncio.sleep(RETRY_S)  # a failed disk refuses immediately

    def check(self) -> None:
        rows = rows_of(self._scene.replicas(STREAM))
        check_publishes(STREAM, self._scene.journal.of_kind(PUBLISH), rows)
