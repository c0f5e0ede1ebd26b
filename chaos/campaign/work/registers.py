"""Registers in a key-value bucket: writes, compare and set, and reads of several kinds.

Owns: the clients and the journal of what they asked and were told.
May not touch: the servers; they are ordinary clients. What the answers must fit is checked by
chaos/sim/promises/log_answers.py, as in the simulator."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import nats.js.errors

from chaos.campaign.work.campaign_work import (
    ANSWER_WITHIN_S,
    NO_ANSWER,
    CampaignWork,
    create_stream,
    stored_rows,
)
from chaos.sim.promises.log_answers import READ, WRITE, check_log

STREAM = "KV_registers"
KEYS = tuple(f"$KV.registers.k{number}" for number in range(5))
CLIENTS = 4
EVERY_S = 0.05
READ_WITHIN_S = 1.0  # a read without answer tells nothing: ask again, of whoever leads by then
WRONG_LAST_SEQUENCE = 10071


@dataclass(slots=True)
class Registers(CampaignWork):
    seed: int
    direct_reads: bool = True  # direct gets have to be current, too; nats-server does not say so
    _count: int = field(default=0, init=False)
    name: ClassVar[str] = "registers"

    @property
    def streams(self) -> Sequence[str]:
        return (STREAM,)

    async def create(self) -> None:
        await create_stream(
            self.urls, name=STREAM, subjects=["$KV.registers.>"], num_replicas=self.replicas,
            allow_direct=True, max_msgs_per_subject=-1,
        )  # fmt: skip

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                url = self.urls[number % len(self.urls)]
                dice = random.Random(self.seed * 1000 + number)
                tasks.create_task(self._client(f"client {number}", url, dice), name="registers")

    async def _client(self, name: str, url: str, dice: random.Random) -> None:
        """One operation after the other, on one node while it is there."""

        async def step(client: Any) -> None:
            key = dice.choice(KEYS)
            if dice.random() < 0.5:
                direct = self.direct_reads and dice.random() < 0.5
                await self._read(client, name, url, key, direct=direct)
            else:
                await self._write(client, name, url, key, dice)

        await self._again_and_again(step, dice, every_s=EVERY_S, urls=[url])

    async def _write(self, client: Any, name: str, url: str, key: str, dice: random.Random) -> None:
        self._count += 1
        payload = f"{name} {self._count}".encode()
        expected: dict[str, int] = {}
        headers = {}
        if dice.random() < 0.7:
            seq = await self._read(client, name, url, key, direct=False)
            if seq is None:
                return
            expected["subject_seq"] = seq
            headers["Nats-Expected-Last-Subject-Sequence"] = str(seq)
        operation = self.journal.invoke(
            name, WRITE, stream=STREAM, node=url, subject=key, payload=payload, expected=expected
        )
        try:
            ack = await client.jetstream(timeout=ANSWER_WITHIN_S).publish(
                key, payload, headers=headers, timeout=ANSWER_WITHIN_S
            )
        except nats.js.errors.APIError as refused:
            if refused.err_code == WRONG_LAST_SEQUENCE:
                told = str(refused.description).rpartition(": ")[2]
                self.journal.failed(operation, last=int(told) if told.isdigit() else 0)
        except NO_ANSWER:
            return  # unknown: it may be stored or not
        else:
            self.journal.ok(operation, seq=ack.seq)

    async def _read(
        self, client: Any, name: str, url: str, key: str, *, direct: bool
    ) -> int | None:
        """The last revision of the key; 0 if it has none, None without an answer."""
        operation = self.journal.invoke(
            name, READ, stream=STREAM, node=url, what="last", subject=key, direct=direct
        )
        try:
            found = await client.jetstream(timeout=READ_WITHIN_S).get_last_msg(
                STREAM, key, direct=direct
            )
        except nats.js.errors.NotFoundError:
            self.journal.ok(operation, seq=0)
            return 0
        except NO_ANSWER:
            return None
        self.journal.ok(operation, seq=found.seq, messages=[(found.seq, bytes(found.data or b""))])
        return int(found.seq)

    async def check(self) -> None:
        """Raises BrokenPromise."""
        check_log(STREAM, self.journal, await stored_rows(self.urls, STREAM))
