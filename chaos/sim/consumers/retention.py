"""Work queue and interest retention, with consumers that come and go.

Owns: the stream, its consumers, and which of them is entitled to which message.
May not touch: other workloads; what clients answer is in pull_workers.py.
Checks: a message is removed only if a client of every consumer entitled to it has acked it; judged
by what clients sent and received, not by what the broker recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from chaos.sim.clients.workload import Scene
from chaos.sim.consumers.consuming import (
    Published,
    create_consumer,
    delete_consumer,
    publish_some,
)  # fmt: skip
from chaos.sim.consumers.pull_workers import PullWorkers
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.consumed import ConsumerRecord, check_consumed, check_replicas
from chaos.sim.world.virtual_time import MS, NS

STREAM = "KEPT"
SUBJECTS = ("kept.a", "kept.b")


class RetentionConsumers:
    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._queue = rng.random() < 0.5
        self._publishes = rng.randint(10, 40)
        self._gap_s = rng.choice((0.05, 0.2, 0.4))
        self._change_gap_s = rng.choice((0.3, 1.0, 3.0))
        self._changes = rng.randint(0, 4)
        self._replicas = rng.choice((1, scene.replicas_max, scene.replicas_max))
        self._workers = rng.randint(1, 2)
        self._records: list[ConsumerRecord] = []  # of all consumers that ever were
        self._left: set[str] = set()  # consumers whose deletion was asked for
        self._published: list[Published] = []

    def streams(self) -> Sequence[dict[str, Any]]:
        retention = "workqueue" if self._queue else "interest"
        config = {"name": STREAM, "subjects": ["kept.*"], "retention": retention}
        return [config | {"num_replicas": self._replicas}]

    async def run(self) -> None:
        admin = self._scene.client("kept-admin")
        workers = PullWorkers(self._scene, admin)
        rng = self._scene.rng
        filters = rng.choice(((), SUBJECTS)) if self._queue else (rng.choice(("", SUBJECTS[0])),)
        async with asyncio.TaskGroup() as tasks:
            for subject in filters or ("",):
                await self._begin(tasks, workers, subject)
            publisher = self._scene.client("kept-publisher")
            publishing = tasks.create_task(
                publish_some(self._scene, publisher, SUBJECTS, self._publishes, gap_s=self._gap_s)
            )
            await self._come_and_go(tasks, workers)
            self._published = await publishing
            workers.over = True

    async def _begin(
        self, tasks: asyncio.TaskGroup, workers: PullWorkers, subject: str
    ) -> ConsumerRecord:
        rng = self._scene.rng
        config: dict[str, Any] = {
            "durable_name": f"kept-{len(self._records)}",
            "ack_policy": "explicit",
            "ack_wait": rng.choice((700 * MS, 2 * NS)),
            "max_ack_pending": rng.choice((5, 1000)),
        }
        if subject:
            config["filter_subject"] = subject
        record = ConsumerRecord(STREAM, config)
        self._records.append(record)
        await create_consumer(workers.admin, STREAM, config)
        record.created_ns = self._scene.now_ns()
        workers.start(tasks, record, self._workers)
        return record

    async def _come_and_go(self, tasks: asyncio.TaskGroup, workers: PullWorkers) -> None:
        """A work queue has one consumer per subject: a new one is created when the old one is
        deleted."""
        rng = self._scene.rng
        for _ in range(self._changes):
            await asyncio.sleep(self._change_gap_s * rng.random() * 2)
            if self._queue:
                record = rng.choice([one for one in self._records if one.name not in self._left])
                await self._end(workers, record)
                await self._begin(tasks, workers, record.config.get("filter_subject", ""))
                continue
            record = await self._begin(tasks, workers, rng.choice(("", *SUBJECTS)))
            if rng.random() < 0.4:
                await asyncio.sleep(self._change_gap_s * rng.random() * 2)
                await self._end(workers, record)

    async def _end(self, workers: PullWorkers, record: ConsumerRecord) -> None:
        self._left.add(record.name)
        record.finished = True
        await delete_consumer(workers.admin, STREAM, record.name)

    def check(self) -> None:
        replicas = self._scene.replicas(STREAM)
        for record in self._records:
            if record.name not in self._left:
                check_replicas(record, replicas)
                check_consumed(record, replicas, removals=True)
        store = next(one.stream.store for one in replicas.values() if one.is_leading)
        kept = {seq for seq in range(store.first_seq, store.last_seq + 1) if store.has(seq)}
        for message in self._published:
            entitled = [one for one in self._records if self._entitled(one, message)]
            if message.seq not in kept:
                self._check_let_go(message, entitled)
        for record in self._records:
            # With interest retention another consumer may still need it.
            if self._queue and (late := record.confirmed & kept):
                raise BrokenPromise(f"{record.title}: acks of {sorted(late)} were confirmed")

    def _entitled(self, record: ConsumerRecord, message: Published) -> bool:
        """Whether it certainly was: it existed before the publish, and was not deleted."""
        wants = record.config.get("filter_subject", message.subject) == message.subject
        stays = record.name not in self._left
        return wants and stays and 0 < record.created_ns < message.invoked_ns

    def _check_let_go(self, message: Published, entitled: Sequence[ConsumerRecord]) -> None:
        text = f"{STREAM}: message {message.seq} on {message.subject} was let go"
        if self._queue and not any(message.seq in one.acks_sent for one in self._records):
            raise BrokenPromise(f"{text}, and no client has acked it")
        for record in entitled:
            if not self._queue and message.seq not in record.acks_sent:
                raise BrokenPromise(f"{text}, and no client of {record.name} has acked it")
