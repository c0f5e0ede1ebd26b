"""Consumers with an inactive_threshold: used for a while, then left alone, then created again.

Owns: the stream, its consumers, and when clients have used them.
May not touch: other workloads.
Checks: a consumer that is unused for its threshold is deleted (otherwise the clients do not
finish); one that a client has used less than the threshold ago exists."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.sim.clients.workload import Scene, WorkClient
from chaos.sim.consumers.consuming import (
    CONSUMER_NOT_FOUND,
    create_consumer,
    fetch,
    publish_some,
)  # fmt: skip
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.dispatches import CLOCK_TOLERANCE
from chaos.sim.world.virtual_time import NS

STREAM: Final = "RESTED"
SUBJECTS: Final = ("rested.a", "rested.b")
LOOK_EVERY_S: Final = 0.05
REFUSED: Final = (409, 503)  # a pull request that did not reach a leader that serves it, or ended


@dataclass(slots=True)
class UsedConsumer:
    """The consumers of one name, one after the other. `used_ns`: its leader served it at that time
    or later."""

    config: dict[str, Any]
    used_ns: int = 0
    there: int = 0  # the incarnation that was seen; 0: none
    seen_at: int = 0  # the newest index at which it was checked
    over: int = 0  # the newest incarnation whose deletion was checked
    finished: bool = False
    ended_early: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.config.get("durable_name") or self.config["name"])

    def seen(self, incarnation: int, *, at_index: int, now_ns: int) -> None:
        """A replica that has applied `at_index` has this incarnation of it; 0: none."""
        if at_index < self.seen_at:
            return  # the replica that has applied more is down, or this one is still replaying
        if incarnation <= self.over:
            incarnation = 0  # this replica has not applied a deletion that a client knows of
        if self.there and self.there != incarnation:
            self._judge(now_ns - self.used_ns)
        self.there, self.seen_at = incarnation, at_index

    def told_gone(self) -> None:
        """A client was told that the consumer is gone. The deletion is checked once a running
        replica shows it."""
        self.over = max(self.over, self.there)
        self.there = 0

    def _judge(self, rested_ns: int) -> None:
        threshold_ns = self.config["inactive_threshold"]
        if rested_ns < threshold_ns * CLOCK_TOLERANCE:
            self.ended_early.append(
                f"{STREAM} > {self.name}: gone {rested_ns / NS:.3f} s after its last use, "
                f"inactive_threshold is {threshold_ns / NS} s"
            )


class InactiveConsumers:
    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._publishes = rng.randint(10, 40)
        self._gap_s = rng.choice((0.1, 0.4))
        self._lives = rng.randint(1, 3)
        self._use_s = rng.choice((2.0, 5.0))
        self._replicas = rng.choice((1, scene.replicas_max, scene.replicas_max))
        self._newest_term = 0
        self._consumers = [self._drawn(number) for number in range(rng.randint(1, 3))]

    def _drawn(self, number: int) -> UsedConsumer:
        rng = self._scene.rng
        return UsedConsumer(
            {
                rng.choice(("durable_name", "name")): f"rested-{number}",
                "ack_policy": rng.choice(("explicit", "none")),
                "ack_wait": NS,  # pending acks extend the life of a consumer by this
                "inactive_threshold": rng.choice((1, 2)) * NS,
            }
        )

    def streams(self) -> Sequence[dict[str, Any]]:
        return [{"name": STREAM, "subjects": ["rested.*"], "num_replicas": self._replicas}]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            publisher = self._scene.client("rested-publisher")
            tasks.create_task(
                publish_some(self._scene, publisher, SUBJECTS, self._publishes, gap_s=self._gap_s)
            )
            for one in self._consumers:
                tasks.create_task(self._live(self._scene.client(f"{one.name}-client"), one))
            tasks.create_task(self._watch())

    async def _live(self, client: WorkClient, one: UsedConsumer) -> None:
        rng = self._scene.rng
        for _ in range(self._lives):
            began_ns = self._scene.now_ns()
            await create_consumer(client, STREAM, one.config)
            one.used_ns = max(one.used_ns, began_ns)
            ends_ns = self._scene.now_ns() + int(self._use_s * rng.random() * NS)
            while self._scene.now_ns() < ends_ns:
                await self._use(client, one)
            await self._rest(client, one)
        one.finished = True

    async def _use(self, client: WorkClient, one: UsedConsumer) -> None:
        rng = self._scene.rng
        if rng.random() < 0.1:  # just when its deletion is proposed
            await asyncio.sleep(one.config["inactive_threshold"] / NS + rng.random())
        began_ns, leader = self._scene.now_ns(), self._leader()
        fetched = await fetch(
            client, STREAM, one.name, batch=rng.choice((1, 5)), expires_s=rng.choice((0.2, 0.5))
        )
        served = fetched.messages or (fetched.told and fetched.status not in REFUSED)
        if served and leader is not None and leader == self._leader():
            one.used_ns = max(one.used_ns, began_ns)
        for message in fetched.messages:
            if rng.random() < 0.8:
                client.publish(message.reply, b"+ACK")
        await asyncio.sleep(0.05)

    async def _rest(self, client: WorkClient, one: UsedConsumer) -> None:
        """Wait until it is deleted. Consumer info does not count as use."""
        while True:
            await asyncio.sleep(0.3)
            try:
                info = await client.api(f"CONSUMER.INFO.{STREAM}.{one.name}", timeout_s=2.0)
            except TimeoutError:
                continue
            if info.get("error", {}).get("err_code") == CONSUMER_NOT_FOUND:
                self._scene.mark("inactive consumer gone")
                self._notice()
                one.told_gone()
                return

    def _leader(self) -> str | None:
        """The only node that leads, if none is known to have led later. What an older leader serves
        does not count as use for the next one."""
        replicas = self._scene.replicas(STREAM)
        leading = [name for name, replica in replicas.items() if replica.is_leading]
        if len(leading) != 1 or replicas[leading[0]].term < self._newest_term:
            return None
        return leading[0]

    async def _watch(self) -> None:
        """Detects when a consumer was deleted, and checks whether it was due."""
        while not all(one.finished for one in self._consumers):
            self._notice()
            await asyncio.sleep(LOOK_EVERY_S)

    def _notice(self) -> None:
        replicas = self._scene.replicas(STREAM).values()
        self._newest_term = max([self._newest_term, *(one.term for one in replicas)])
        if replicas:
            newest = max(replicas, key=lambda replica: replica.stream.applied)
            for one in self._consumers:
                consumer = newest.stream.consumers.get(one.name)
                one.seen(
                    0 if consumer is None else consumer.incarnation,
                    at_index=newest.stream.applied,
                    now_ns=self._scene.now_ns(),
                )

    def check(self) -> None:
        for one in self._consumers:
            for text in one.ended_early:
                raise BrokenPromise(text)
