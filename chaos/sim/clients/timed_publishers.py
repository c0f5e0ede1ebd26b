"""Publishers into a stream that depends on time: age limit, TTLs, dedup window, time stamps.

Owns: the payloads; each is unique and has a message id of its own.
May not touch: other workloads.
Checks: no run lasts as long as the limits, so nothing expires and no message id is forgotten. The
times of messages never go back, and are those at which they were published."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from chaos.sim.clients.client import SimClient, header_block
from chaos.sim.clients.workload import Scene
from chaos.sim.promises.stored import check_publishes, rows_of
from chaos.sim.promises.stored_times import check_order, check_times
from chaos.sim.world.virtual_time import NS

STREAM = "TIMED"
LIMIT_S = 1800  # longer than any run, shorter than a wrong clock is wrong
ANSWER_WITHIN_S = 4.0


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
                "name": STREAM,
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

    async def _publish(self, client: SimClient, number: int) -> None:
        journal = self._scene.journal
        payload = f"{client.name}-{number}".encode()
        named = {"Nats_Msg_Id": payload.decode()}
        if number % 3 == 0:
            named["Nats_TTL"] = f"{LIMIT_S}s"
        subject = f"timed.{number % 2}"
        fields = {"stream": STREAM, "subject": subject, "payload": payload}
        operation = journal.invoke(client.name, "timed publish", **fields)
        try:
            answer = await client.request(
                subject.encode(), payload, headers=header_block(**named), timeout_s=ANSWER_WITHIN_S
            )
        except TimeoutError:
            return
        body = {"error": answer.status} if answer.status else json.loads(answer.data)
        if "error" in body:
            journal.failed(operation, error=body["error"])
            return
        journal.ok(operation, seq=body["seq"], duplicate=body.get("duplicate", False))

    def check(self) -> None:
        replicas = self._scene.replicas(STREAM)
        publishes = self._scene.journal.of_kind("timed publish")
        check_publishes(STREAM, publishes, rows_of(replicas))
        check_order(STREAM, replicas)
        if not self._scene.time_in_doubt:
            check_times(STREAM, publishes, replicas)
