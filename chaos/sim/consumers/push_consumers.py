"""Push consumers: subscribers, alone or in a queue group, with and without flow control.

Owns: the consumers of its stream and their subscribers.
May not touch: other workloads; what clients answer is in pull_workers.py.
Checks: as for pull consumers: promises/consumed.py at the end, promises/dispatches.py at every
delivery, promises/consumer_states.py at every applied entry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from broker.wire import headers as wire_headers
from chaos.sim.clients.client import ClientMessage
from chaos.sim.clients.workload import Scene, WorkClient
from chaos.sim.consumers.consuming import create_consumer, publish_some, received_of
from chaos.sim.consumers.pull_workers import PullWorkers
from chaos.sim.promises.consumed import ConsumerRecord, Received, check_records
from chaos.sim.world.virtual_time import MS, NS

STREAM = "PUSHED"
SUBJECTS = ("pushed.a", "pushed.b")
STALLED = b"Nats-Consumer-Stalled"
CONTROL_STATUS = 100  # a heartbeat or a flow control request


class PushConsumers:
    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._publishes = rng.randint(10, 40)
        self._gap_s = rng.choice((0.05, 0.2, 0.4))
        self._replicas = rng.choice((1, scene.replicas_max, scene.replicas_max))
        self._records = [self._drawn(number) for number in range(rng.randint(1, 2))]

    def _drawn(self, number: int) -> ConsumerRecord:
        rng = self._scene.rng
        config: dict[str, Any] = {
            "durable_name": f"push-{number}",
            "deliver_subject": f"pushes.{number}",
            "ack_policy": rng.choice(("explicit", "explicit", "all", "none")),
        }
        if config["ack_policy"] != "none":
            config["max_deliver"] = rng.choice((-1, -1, 3))
            config["max_ack_pending"] = rng.choice((1, 5, 1000))
            config["ack_wait"] = rng.choice((700 * MS, 2 * NS))
            self._scene.dispatches.timed(STREAM, config["durable_name"])
        if rng.random() < 0.3:
            config["filter_subject"] = SUBJECTS[0]
        if rng.random() < 0.4:
            config["deliver_group"] = "workers"
        elif rng.random() < 0.5:
            config["idle_heartbeat"] = 500 * MS
            config["flow_control"] = True
        return ConsumerRecord(STREAM, config)

    def streams(self) -> Sequence[dict[str, Any]]:
        return [{"name": STREAM, "subjects": ["pushed.*"], "num_replicas": self._replicas}]

    async def run(self) -> None:
        admin = self._scene.client("push-admin")
        for record in self._records:
            await create_consumer(admin, STREAM, record.config)
        workers = PullWorkers(self._scene, admin)
        async with asyncio.TaskGroup() as tasks:
            for record in self._records:
                tasks.create_task(workers.watch(record))
                for number in range(3 if "deliver_group" in record.config else 1):
                    client = self._scene.client(f"{record.name}-{number}")
                    tasks.create_task(self._work(client, record, workers))
            publisher = self._scene.client("push-publisher")
            await publish_some(self._scene, publisher, SUBJECTS, self._publishes, gap_s=self._gap_s)
            workers.over = True

    async def _work(self, client: WorkClient, record: ConsumerRecord, workers: PullWorkers) -> None:
        arrived: asyncio.Queue[Received] = asyncio.Queue()

        def take(message: ClientMessage) -> None:
            received = received_of(message)
            if received is not None:
                record.received.append(received)
                arrived.put_nowait(received)
            elif message.status == CONTROL_STATUS:
                answer = message.reply or wire_headers.get(message.headers, STALLED)
                if answer:
                    client.publish(answer, b"")

        queue = record.config.get("deliver_group", "").encode()
        client.subscribe(record.config["deliver_subject"].encode(), take, queue)
        while not record.finished:
            try:
                async with asyncio.timeout(0.5):
                    received = await arrived.get()
            except TimeoutError:
                continue
            await workers.answer(client, record, received)
        client.close()

    def check(self) -> None:
        check_records(self._records, self._scene.replicas(STREAM))
