"""Pull consumers: several clients fetch from a few consumers, and use every kind of ack.

Owns: the consumers of its stream, and a client that waits for nothing.
May not touch: other workloads; what clients answer is in pull_workers.py.
Checks: promises/consumed.py at the end, promises/dispatches.py at every delivery; no pull request
that waits is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from chaos.sim.clients.workload import Scene
from chaos.sim.consumers.consuming import create_consumer, fetch, publish_some
from chaos.sim.consumers.pull_workers import PullWorkers
from chaos.sim.promises.consumed import ConsumerRecord, Fetch, check_pulls_told, check_records
from chaos.sim.world.virtual_time import MS, NS

STREAM = "PULLED"
SUBJECTS = ("pulled.a", "pulled.b")
LONG_PULL_S = 20.0
LATE_S = 8.0


class PullConsumers:
    """Publishes some messages; its clients work until every consumer has nothing left to do."""

    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._publishes = rng.randint(10, 40)
        self._gap_s = rng.choice((0.05, 0.2, 0.4))
        self._replicas = rng.choice((1, scene.replicas_max, scene.replicas_max))
        self._workers = rng.randint(1, 3)
        self._patient = rng.random() < 0.5
        self.records = [self._drawn(number) for number in range(rng.randint(1, 2))]
        self._pulls: list[tuple[int, int, Fetch]] = []

    def _drawn(self, number: int) -> ConsumerRecord:
        rng = self._scene.rng
        config: dict[str, Any] = {
            "durable_name": f"pull-{number}",
            "ack_policy": rng.choice(("explicit", "explicit", "explicit", "all", "none")),
            "max_deliver": rng.choice((-1, -1, 2, 3)),
            "max_ack_pending": rng.choice((1, 5, 1000)),
        }
        if config["ack_policy"] == "none":
            del config["max_deliver"], config["max_ack_pending"]
        elif rng.random() < 0.3:
            config["backoff"] = [500 * MS, 1500 * MS]
            config["max_deliver"] = 3
        else:
            config["ack_wait"] = rng.choice((700 * MS, 2 * NS))
        if rng.random() < 0.3:
            config["filter_subject"] = SUBJECTS[0]
        if config["ack_policy"] != "none":
            self._scene.dispatches.timed(STREAM, config["durable_name"])
        return ConsumerRecord(STREAM, config)

    def streams(self) -> Sequence[dict[str, Any]]:
        return [{"name": STREAM, "subjects": ["pulled.*"], "num_replicas": self._replicas}]

    async def run(self) -> None:
        self._admin = self._scene.client("pull-admin")
        for record in self.records:
            await create_consumer(self._admin, STREAM, record.config)
        workers = PullWorkers(self._scene, self._admin)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish(workers))
            for record in self.records:
                workers.start(tasks, record, self._workers)
            if self._patient:
                tasks.create_task(self._wait_for_nothing())

    async def _publish(self, workers: PullWorkers) -> None:
        client = self._scene.client("pull-publisher")
        await publish_some(self._scene, client, SUBJECTS, self._publishes, gap_s=self._gap_s)
        workers.over = True

    async def _wait_for_nothing(self) -> None:
        """A pull request of a consumer that never has a message: only a status can end it."""
        name = "patient"
        config = {"durable_name": name, "filter_subject": "pulled.never"}
        await create_consumer(self._admin, STREAM, config)
        client = self._scene.client(name)
        while not all(record.finished for record in self.records):
            invoked_ns = self._scene.now_ns()
            fetched = await fetch(
                client, STREAM, name, batch=1, expires_s=LONG_PULL_S, late_s=LATE_S
            )
            self._pulls.append((invoked_ns, self._scene.now_ns(), fetched))
            await asyncio.sleep(0.05)  # a node that does not know the stream refuses immediately

    def check(self) -> None:
        check_records(self.records, self._scene.replicas(STREAM))
        if self._patient:
            check_pulls_told(
                self._pulls,
                self._scene.healed_ns,
                links_stay_up=self._scene.links_stay_up,
            )
