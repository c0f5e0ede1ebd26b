"""Clients that fetch from pull consumers and use every kind of ack, until nothing is left.

Owns: what these clients decide about each message, and when a consumer has nothing left to do.
May not touch: the stream and its consumers, which a workload creates."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from chaos.sim.clients.workload import Scene, WorkClient
from chaos.sim.consumers.consuming import fetch
from chaos.sim.promises.consumed import ConsumerRecord, Received
from chaos.sim.world.virtual_time import MS

ANSWER_WITHIN_S = 3.0
NAK_DELAY_NS = 700 * MS


@dataclass(slots=True)
class PullWorkers:
    """`over`: nothing more will be published or removed."""

    scene: Scene
    admin: WorkClient
    over: bool = False

    def start(self, tasks: asyncio.TaskGroup, record: ConsumerRecord, count: int) -> None:
        tasks.create_task(self.watch(record))
        for number in range(count):
            client = self.scene.client(f"{record.name}-{number}")
            tasks.create_task(self._work(client, record))

    async def watch(self, record: ConsumerRecord) -> None:
        """Read consumer info now and then, until nothing is left to deliver or to ack."""
        quiet = 0
        while quiet < 2 and not record.finished:
            await asyncio.sleep(0.3)
            try:
                info = await self.admin.api(
                    f"CONSUMER.INFO.{record.stream}.{record.name}", timeout_s=2.0
                )
            except TimeoutError:
                continue
            if "error" in info:
                continue
            record.infos.append(info)
            idle = not info["num_pending"] and not info["num_ack_pending"]
            quiet = quiet + 1 if idle and self.over else 0
        record.finished = True

    async def _work(self, client: WorkClient, record: ConsumerRecord) -> None:
        rng = self.scene.rng
        while not record.finished:
            if rng.random() < 0.05:
                client.disconnect()
            long = rng.random() < 0.1 and not self.over
            fetched = await fetch(
                client,
                record.stream,
                record.name,
                batch=rng.choice((1, 3, 10)),
                expires_s=3.0 if long else rng.choice((0.5, 1.0)),
                no_wait=rng.random() < 0.2,
                heartbeat_s=rng.choice((0.0, 0.2)),
            )
            for received in fetched.messages:
                record.received.append(received)
                await self.answer(client, record, received)
            await asyncio.sleep(0.05)
        client.close()

    async def answer(self, client: WorkClient, record: ConsumerRecord, received: Received) -> None:
        rng = self.scene.rng
        choice = rng.random()
        if record.config["ack_policy"] == "none":
            return
        if self.over and choice < 0.7:
            choice = rng.random() * 0.5  # only choices that settle the message
        if choice < 0.25:
            if rng.random() < 0.3:  # a plain ack before the double ack
                self._ack(client, record, received, b"+ACK")
                await asyncio.sleep(0.002)
            await self._double_ack(client, record, received)
        elif choice < 0.6:
            self._ack(client, record, received, b"+ACK")
        elif choice < 0.7:
            self._nak(client, record, received, rng.choice((0, NAK_DELAY_NS)))
        elif choice < 0.75:
            self._ack(client, record, received, b"+TERM")
        elif choice < 0.85:
            client.publish(received.reply, b"+WPI")
            await asyncio.sleep(0.3)
            self._ack(client, record, received, b"")
        elif choice < 0.9:
            client.disconnect()

    def _ack(
        self, client: WorkClient, record: ConsumerRecord, received: Received, payload: bytes
    ) -> None:
        record.acks_sent.add(received.seq)
        client.publish(received.reply, payload)

    def _nak(
        self, client: WorkClient, record: ConsumerRecord, received: Received, delay_ns: int
    ) -> None:
        self.scene.dispatches.nak(record.stream, record.name, received.seq, delay_ns)
        payload = b'-NAK {"delay": %d}' % delay_ns if delay_ns else b"-NAK"
        client.publish(received.reply, payload)

    async def _double_ack(
        self, client: WorkClient, record: ConsumerRecord, received: Received
    ) -> None:
        record.acks_sent.add(received.seq)
        try:
            answer = await client.request(received.reply, timeout_s=ANSWER_WITHIN_S)
        except TimeoutError:
            self.scene.mark("double ack unanswered")
            return
        if not answer.status:
            record.confirmed.add(received.seq)
            self.scene.dispatches.confirmed(record.stream, record.name, received.seq)
