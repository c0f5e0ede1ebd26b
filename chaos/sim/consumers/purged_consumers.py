"""Purges and deletions while clients fetch and ack: a removal may overtake acks and deliveries.

Owns: the stream, its consumers, and what is removed from it.
May not touch: other workloads; what clients answer is in pull_workers.py.
Checks: promises/consumed.py at the end, promises/consumer_states.py at every entry, and that the
leader's live state of a consumer ends equal to the replicated one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from chaos.sim.clients.workload import Scene
from chaos.sim.consumers.consuming import create_consumer, publish_some
from chaos.sim.consumers.pull_workers import PullWorkers
from chaos.sim.promises.consumed import ConsumerRecord, check_records
from chaos.sim.world.virtual_time import MS, NS

STREAM = "PURGED"
SUBJECTS = ("purged.a", "purged.b")


class PurgedConsumers:
    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._publishes = rng.randint(10, 40)
        self._gap_s = rng.choice((0.05, 0.2))
        self._purge_gap_s = rng.choice((0.03, 0.1, 0.5))
        self._replicas = rng.choice((1, scene.replicas_max, scene.replicas_max))
        self._workers = rng.randint(1, 3)
        self._records = [self._drawn(number) for number in range(rng.randint(1, 2))]

    def _drawn(self, number: int) -> ConsumerRecord:
        rng = self._scene.rng
        config: dict[str, Any] = {
            "durable_name": f"purge-{number}",
            "ack_policy": rng.choice(("explicit", "all")),
            "max_deliver": rng.choice((-1, -1, 3)),
            "max_ack_pending": rng.choice((5, 1000)),
            "ack_wait": rng.choice((700 * MS, 2 * NS)),
        }
        if rng.random() < 0.3:
            config["filter_subject"] = SUBJECTS[0]
        return ConsumerRecord(STREAM, config)

    def streams(self) -> Sequence[dict[str, Any]]:
        return [{"name": STREAM, "subjects": ["purged.*"], "num_replicas": self._replicas}]

    async def run(self) -> None:
        admin = self._scene.client("purge-admin")
        for record in self._records:
            await create_consumer(admin, STREAM, record.config)
        workers = PullWorkers(self._scene, admin)
        async with asyncio.TaskGroup() as tasks:
            for record in self._records:
                workers.start(tasks, record, self._workers)
            publisher = self._scene.client("purge-publisher")
            publishing = tasks.create_task(
                publish_some(self._scene, publisher, SUBJECTS, self._publishes, gap_s=self._gap_s)
            )
            tasks.create_task(self._remove(publishing, workers))

    async def _remove(self, publishing: asyncio.Task[Any], workers: PullWorkers) -> None:
        rng, client = self._scene.rng, self._scene.client("remover")
        while not publishing.done():
            await asyncio.sleep(self._purge_gap_s * rng.random() * 2)
            subject, request = self._removal()
            try:
                await client.api(f"STREAM.{subject}.{STREAM}", request, timeout_s=3.0)
            except TimeoutError:
                self._scene.mark("removal unanswered")
        workers.over = True

    def _removal(self) -> tuple[str, dict[str, Any]]:
        rng = self._scene.rng
        replicas = self._scene.replicas(STREAM)
        near = max((one.stream.store.last_seq for one in replicas.values()), default=1) + 1
        kind = rng.random()
        if kind < 0.3:
            return "MSG.DELETE", {"seq": max(near - rng.randint(1, 6), 1)}
        if kind < 0.5:
            return "PURGE", {"seq": max(near - rng.randint(0, 5), 1)}
        if kind < 0.7:
            return "PURGE", {"keep": rng.randint(1, 4)}
        if kind < 0.85:
            return "PURGE", {"filter": rng.choice(SUBJECTS)}
        return "PURGE", {}

    def check(self) -> None:
        check_records(self._records, self._scene.replicas(STREAM), removals=True)
