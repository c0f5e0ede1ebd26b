"""Atomic batches, and messages that are repeated under the same id long after their ack.

Owns: the clients of two streams.
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
    CampaignWork,
    create_stream,
    publish,
    stored_rows,
)
from chaos.sim.promises.batches import ATOMIC, REPEATED, check_batches, check_repeats
from chaos.sim.promises.journal import Result
from chaos.workload import connect

BATCHES, IDS = "CHAOS_BATCHES", "CHAOS_IDS"
BATCHES_EVERY_S, IDS_EVERY_S = 0.1, 0.05
BATCH_CLIENTS = 3
# Large messages at the beginning, more than a log keeps, so that their ids must come from a
# checkpoint or, for a node that lost its disk, from a snapshot. Otherwise the log would be replayed
# and contain them.
FIRST_IDS, FIRST_BYTES, FIRST_AT_ONCE = 256, 64 << 10, 8
OLD_IDS = 200  # an id among the last 200 is repeated, or one of the first


@dataclass(slots=True)
class Batches(CampaignWork):
    seed: int
    name: ClassVar[str] = "atomic batches"

    @property
    def streams(self) -> Sequence[str]:
        return (BATCHES,)

    async def create(self) -> None:
        await create_stream(
            self.urls, name=BATCHES, subjects=[BATCHES], num_replicas=self.replicas,
            allow_atomic=True,
        )  # fmt: skip

    async def run(self) -> None:
        """Several clients: the messages of two batches must not be mixed."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(BATCH_CLIENTS):
                tasks.create_task(self._client(f"c{number}"), name=self.name)

    async def _client(self, name: str) -> None:
        dice, count = random.Random(f"{self.seed} {name}"), 0

        async def step(client: Any) -> None:
            nonlocal count
            count += 1
            await self._batch(client, f"{name}b{count}", dice.randint(1, 6))

        await self._again_and_again(step, dice, every_s=BATCHES_EVERY_S)

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
class RepeatedIds(CampaignWork):
    """New ids and old ones in turn, each attempt with a content of its own."""

    seed: int
    name: ClassVar[str] = "repeated message ids"
    _known: list[str] = field(default_factory=list, init=False)  # ids that were acked
    _count: int = field(default=0, init=False)

    @property
    def streams(self) -> Sequence[str]:
        return (IDS,)

    async def create(self) -> None:
        await create_stream(
            self.urls, name=IDS, subjects=[IDS], num_replicas=self.replicas,
            duplicate_window=DUPLICATE_WINDOW_S,
        )  # fmt: skip
        client = await connect(self.urls)
        try:
            for _ in range(0, FIRST_IDS, FIRST_AT_ONCE):
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(FIRST_AT_ONCE):
                        tasks.create_task(self._send(client, None, FIRST_BYTES), name=self.name)
        finally:
            await client.close()

    async def run(self) -> None:
        dice = random.Random(self.seed)

        async def step(client: Any) -> None:
            repeated = None
            if self._known and self._count % 2:
                some = self._known[:FIRST_IDS] if dice.random() < 0.5 else self._known[-OLD_IDS:]
                repeated = dice.choice(some)
            await self._send(client, repeated)

        await self._again_and_again(step, dice, every_s=IDS_EVERY_S)

    async def _send(self, client: Any, repeated: str | None, size: int = 0) -> None:
        self._count += 1
        ident = repeated or f"i{self._count}"
        content = f"{ident}/{self._count}"
        operation = self.journal.invoke("ids", REPEATED, id=ident, payload=content)
        await publish(
            client, self.journal, operation, subject=IDS, data=content.encode().ljust(size),
            headers={"Nats-Msg-Id": ident},
        )  # fmt: skip
        if operation.result is Result.OK and repeated is None:
            self._known.append(ident)

    async def check(self) -> None:
        check_repeats(IDS, self.journal, await stored_rows(self.urls, IDS))
