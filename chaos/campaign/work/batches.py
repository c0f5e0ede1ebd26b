"""Atomic batches, and messages that are repeated under the same id long after their ack.

Owns: the clients of one stream.
May not touch: the servers. The rules are those of the simulator (chaos/sim/promises/batches.py):
a batch is stored whole or not at all, an id once, and every ack tells the truth."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from chaos.campaign.work.campaign_work import (
    ANSWER_WITHIN_S,
    DUPLICATE_WINDOW_S,
    NO_ANSWER,
    create_stream,
    new_journal,
    publish,
    stored_rows,
)
from chaos.sim.promises.batches import ATOMIC, REPEATED, check_batches, check_repeats
from chaos.sim.promises.journal import Journal, Result
from chaos.workload import connect

BATCHES, IDS = "CHAOS_BATCHES", "CHAOS_IDS"
EVERY_S = 0.1
BATCH_CLIENTS = 3
OLD_IDS = 200  # one of so many is repeated


@dataclass(slots=True)
class Batches:
    urls: Sequence[str]
    replicas: int
    seed: int
    journal: Journal = field(default_factory=new_journal)
    stopping: bool = False

    @property
    def name(self) -> str:
        return "atomic batches"

    @property
    def streams(self) -> Sequence[str]:
        return (BATCHES,)

    async def create(self) -> None:
        await create_stream(
            self.urls, name=BATCHES, subjects=[BATCHES], num_replicas=self.replicas,
            allow_atomic=True,
        )  # fmt: skip

    async def run(self) -> None:
        """Several clients: a batch must not be mixed with another one."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(BATCH_CLIENTS):
                tasks.create_task(self._client(f"c{number}"), name=self.name)

    async def _client(self, name: str) -> None:
        dice, client, count = random.Random(f"{self.seed} {name}"), await connect(self.urls), 0
        try:
            while not self.stopping:
                if client.is_connected:
                    count += 1
                    await self._batch(client, f"{name}b{count}", dice.randint(1, 6))
                await asyncio.sleep(dice.uniform(0, 2 * EVERY_S))
        finally:
            await client.close()

    async def _batch(self, client: Any, name: str, members: int) -> None:
        operation = self.journal.invoke("batches", ATOMIC, batch=name, members=members)
        try:
            for number in range(1, members):
                headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number)}
                await client.publish(BATCHES, f"{name}/{number}".encode(), headers=headers)
                await asyncio.sleep(0)  # others come in between
            headers = {
                "Nats-Batch-Id": name, "Nats-Batch-Sequence": str(members),
                "Nats-Batch-Commit": "1",
            }  # fmt: skip
            answer = await client.request(
                BATCHES, f"{name}/{members}".encode(), headers=headers, timeout=ANSWER_WITHIN_S
            )
            told = json.loads(answer.data)
        except (*NO_ANSWER, ValueError):
            return
        if "error" in told:
            self.journal.failed(operation, code=told["error"].get("err_code"))
        else:
            self.journal.ok(operation, seq=told["seq"], count=told.get("count", 1))

    async def check(self) -> None:
        check_batches(BATCHES, self.journal, await stored_rows(self.urls, BATCHES))


@dataclass(slots=True)
class RepeatedIds:
    urls: Sequence[str]
    replicas: int
    seed: int
    journal: Journal = field(default_factory=new_journal)
    stopping: bool = False
    NAME: ClassVar[str] = "repeated message ids"

    @property
    def name(self) -> str:
        return self.NAME

    @property
    def streams(self) -> Sequence[str]:
        return (IDS,)

    async def create(self) -> None:
        await create_stream(
            self.urls, name=IDS, subjects=[IDS], num_replicas=self.replicas,
            duplicate_window=DUPLICATE_WINDOW_S,
        )  # fmt: skip

    async def run(self) -> None:
        """New ids and old ones in turn, each attempt with a content of its own."""
        dice, client, count = random.Random(self.seed), await connect(self.urls), 0
        known: list[str] = []
        try:
            while not self.stopping:
                if client.is_connected:
                    count += 1
                    repeat = bool(known) and count % 2 == 0
                    ident = dice.choice(known[-OLD_IDS:]) if repeat else f"i{count}"
                    data = f"{ident}/{count}".encode()
                    one = self.journal.invoke("ids", REPEATED, id=ident, payload=data)
                    headers = {"Nats-Msg-Id": ident}
                    await publish(
                        client, self.journal, one, subject=IDS, data=data, headers=headers
                    )
                    if one.result is Result.OK and not repeat:
                        known.append(ident)
                await asyncio.sleep(dice.uniform(0, EVERY_S))
        finally:
            await client.close()

    async def check(self) -> None:
        check_repeats(IDS, self.journal, await stored_rows(self.urls, IDS))
