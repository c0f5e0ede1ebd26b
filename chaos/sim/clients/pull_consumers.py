"""Pull consumers: several clients fetch from a few consumers, and answer in every way there is.

Owns: the consumers of its stream and what clients decide about each message.
May not touch: other workloads.
Checks: promises/consumed.py at the end, promises/dispatches.py at every delivery; no pull request
that waits is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from chaos.sim.clients.client import SimClient
from chaos.sim.clients.consuming import create_consumer, fetch
from chaos.sim.clients.workload import Scene
from chaos.sim.promises.consumed import (
    ConsumerRecord,
    Fetch,
    Received,
    check_consumed,
    check_floors,
    check_pulls_told,
    check_replicas,
)  # fmt: skip
from chaos.sim.world.virtual_time import MS, NS

STREAM = "PULLED"
SUBJECTS = ("pulled.a", "pulled.b")
ANSWER_WITHIN_S = 3.0
LONG_PULL_S = 20.0
LATE_S = 8.0
NAK_DELAY = b'-NAK {"delay": 700000000}'


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
        self._published = False
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
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish())
            for record in self.records:
                tasks.create_task(self._watch(record))
                for number in range(self._workers):
                    client = self._scene.client(f"{record.name}-{number}")
                    tasks.create_task(self._work(client, record))
            if self._patient:
                tasks.create_task(self._wait_for_nothing())

    async def _publish(self) -> None:
        rng = self._scene.rng
        client = self._scene.client("pull-publisher")
        for number in range(self._publishes):
            try:
                await client.request(rng.choice(SUBJECTS).encode(), b"%d" % number, timeout_s=2.0)
            except TimeoutError:
                self._scene.mark("publish for consumers unanswered")
            await asyncio.sleep(self._gap_s * rng.random())
        self._published = True

    async def _watch(self, record: ConsumerRecord) -> None:
        """Read consumer info now and then, until nothing is left to deliver or to ack."""
        quiet = 0
        while quiet < 2:
            await asyncio.sleep(0.3)
            try:
                info = await self._admin.api(f"CONSUMER.INFO.{STREAM}.{record.name}", timeout_s=2.0)
            except TimeoutError:
                continue
            if "error" in info:
                continue
            record.infos.append(info)
            idle = not info["num_pending"] and not info["num_ack_pending"]
            quiet = quiet + 1 if idle and self._published else 0
        record.finished = True

    async def _work(self, client: SimClient, record: ConsumerRecord) -> None:
        rng = self._scene.rng
        while not record.finished:
            if rng.random() < 0.05:
                client.disconnect()
            long = rng.random() < 0.1 and not self._published
            fetched = await fetch(
                client,
                STREAM,
                record.name,
                batch=rng.choice((1, 3, 10)),
                expires_s=3.0 if long else rng.choice((0.5, 1.0)),
                no_wait=rng.random() < 0.2,
                heartbeat_s=rng.choice((0.0, 0.2)),
            )
            for received in fetched.messages:
                record.received.append(received)
                await self._answer(client, record, received)
            await asyncio.sleep(0.05)

    async def _answer(self, client: SimClient, record: ConsumerRecord, received: Received) -> None:
        rng, reply = self._scene.rng, received.reply
        choice = rng.random()
        if record.config["ack_policy"] == "none":
            return
        if self._published and choice < 0.7:
            choice = rng.random() * 0.5  # come to an end
        if choice < 0.25:
            await self._double_ack(client, record, received)
        elif choice < 0.6:
            client.publish(reply, b"+ACK")
        elif choice < 0.7:
            self._nak(record, received)
            client.publish(reply, b"-NAK" if rng.random() < 0.5 else NAK_DELAY)
        elif choice < 0.75:
            client.publish(reply, b"+TERM")
        elif choice < 0.85:
            client.publish(reply, b"+WPI")
            await asyncio.sleep(0.3)
            client.publish(reply, b"")
        elif choice < 0.9:
            client.disconnect()

    def _nak(self, record: ConsumerRecord, received: Received) -> None:
        self._scene.dispatches.nak(STREAM, record.name, received.seq)

    async def _double_ack(
        self, client: SimClient, record: ConsumerRecord, received: Received
    ) -> None:
        try:
            answer = await client.request(received.reply, timeout_s=ANSWER_WITHIN_S)
        except TimeoutError:
            self._scene.mark("double ack unanswered")
            return
        if not answer.status:
            record.confirmed.add(received.seq)
            self._scene.dispatches.confirmed(STREAM, record.name, received.seq)

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

    def check(self) -> None:
        replicas = self._scene.replicas(STREAM)
        for record in self.records:
            check_replicas(record, replicas)
            check_floors(record)
            check_consumed(record, replicas)
        if self._patient:
            check_pulls_told(
                self._pulls,
                self._scene.healed_ns,
                links_stay_up=self._scene.links_stay_up,
            )
