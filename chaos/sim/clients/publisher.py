"""Publishers: one acknowledged publish after the other, each recorded.

Owns: the payloads; each is unique, so that a stored message names its publish.
May not touch: other workloads.
Checks of the streams that depend on time: no run lasts as long as the limits, so nothing expires
and no message id is forgotten; the times of messages never go back, and are those at which they
were published.
Checks: an acked publish is stored exactly once, at the sequence of its ack; no publish is stored
twice, also when a client repeats it with the same message id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from chaos.sim.clients.client import header_block
from chaos.sim.clients.publishing import publish_recorded
from chaos.sim.clients.workload import Scene, WorkClient
from chaos.sim.promises.stored import check_publishes, rows_of
from chaos.sim.promises.stored_times import check_order, check_times
from chaos.sim.world.virtual_time import NS

STREAM = "PUBLISHED"
SUBJECTS = ("published.1", "published.2")
TIMED_STREAM = "TIMED"
LIMIT_S = 1800  # longer than any run, shorter than the error of a wrong clock


class AckedPublishers:
    """Some publishes carry a message id. Without an answer such a publish is repeated, as a careful
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

    async def _publisher(self, client: WorkClient) -> None:
        rng = self._scene.rng
        for number in range(self._publishes):
            await self._publish_one(client, number)
            await asyncio.sleep(self._gap_s * rng.random())

    async def _publish_one(self, client: WorkClient, number: int) -> None:
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
            if await publish_recorded(
                self._scene, client, operation, subject, payload, headers=headers
            ):
                if operation.answer["duplicate"]:
                    self._scene.mark("publish acked as a duplicate")
                return

    def check(self) -> None:
        rows = rows_of(self._scene.replicas(STREAM))
        check_publishes(STREAM, self._scene.journal.of_kind("publish"), rows)


class TimedPublishers:
    """Every publish carries a message id, some a TTL, and some are repeated much later."""

    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._publishes = rng.randint(30, 80)
        self._gap_s = rng.choice((0.1, 0.3, 0.5))

    def streams(self) -> Sequence[dict[str, Any]]:
        return [
            {
                "name": TIMED_STREAM,
                "subjects": ["timed.*"],
                "num_replicas": self._scene.replicas_max,
                "max_age": LIMIT_S * NS,
                "duplicate_window": LIMIT_S * NS,
                "allow_msg_ttl": True,
            }
        ]

    async def run(self) -> None:
        rng = self._scene.rng
        client = self._scene.client("timed")
        for number in range(self._publishes):
            await self._publish(client, number)
            if number and rng.random() < 0.3:
                await self._publish(client, rng.randrange(number))
            await asyncio.sleep(self._gap_s * rng.random())

    async def _publish(self, client: WorkClient, number: int) -> None:
        journal = self._scene.journal
        payload = f"{client.name}-{number}".encode()
        named = {"Nats_Msg_Id": payload.decode()}
        if number % 3 == 0:
            named["Nats_TTL"] = f"{LIMIT_S}s"
        subject = f"timed.{number % 2}"
        fields = {"stream": TIMED_STREAM, "subject": subject, "payload": payload}
        operation = journal.invoke(client.name, "timed publish", **fields)
        await publish_recorded(
            self._scene, client, operation, subject, payload, headers=header_block(**named)
        )

    def check(self) -> None:
        replicas = self._scene.replicas(TIMED_STREAM)
        publishes = self._scene.journal.of_kind("timed publish")
        check_publishes(TIMED_STREAM, publishes, rows_of(replicas))
        check_order(TIMED_STREAM, replicas)
        if not self._scene.time_in_doubt:
            check_times(TIMED_STREAM, publishes, replicas)
