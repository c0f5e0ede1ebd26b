"""Writers: blocks of numbered rows, resent after failures, and by late attempts.

Owns: the stream, the writers and their epochs. A row names its writer, epoch and number.
May not touch: other workloads.
Checks (written.py): every row is stored once, in order per writer; watermarks never go back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from broker.scan.protocol import (
    WRITE_SUBJECT,
    PlanRefused,
    WriteAnswer,
    WriteHead,
    decode_write_answer,
    encode_write,
)
from broker.store.block.codec import BlockBuilder
from chaos.sim.clients.workload import Scene, WorkClient
from chaos.sim.promises.stored import rows_of
from chaos.sim.writers.written import WRITE, check_written, row_payload

STREAM: Final = "WRITTEN"
SUBJECTS: Final = (b"written.1", b"written.2")
BLOCK_ROWS_MAX: Final = 12
WINDOW_MAX: Final = 4


class EpochWriter:
    """One writer, one epoch after the other, each until all of its rows are acknowledged."""

    def __init__(
        self, name: str, scene: Scene, client: WorkClient, late: WorkClient, epochs: Sequence[int]
    ) -> None:
        self.name = name
        self.epochs = epochs
        self._scene = scene
        self._rng = scene.rng
        self._client = client
        self._late = late  # what an attempt that was given up still sends

    async def run(self, gap_s: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            for epoch in range(len(self.epochs)):
                await self._write(epoch, tasks)
                await asyncio.sleep(gap_s * self._rng.random())

    async def _write(self, epoch: int, tasks: asyncio.TaskGroup) -> None:
        """Send a window of blocks at a time, from the first row that is not known to be stored.
        After a failure, sometimes start again from the first row, in other blocks, as a retried
        Spark task does."""
        rng, size = self._rng, self.epochs[epoch]
        stored = 0
        while stored < size:
            answers = await self._window(epoch, stored)
            if rng.random() < 0.2:
                tasks.create_task(self._come_late(epoch))
            if all(answers):
                stored = max(stored, *(self._rows_of(epoch, one) for one in answers if one))
                continue
            if rng.random() < 0.5:
                self._scene.mark("a writer begins its epoch again")
                stored = 0
            if rng.random() < 0.3:
                self._client.disconnect()
            await asyncio.sleep(0.2 * rng.random())

    def _rows_of(self, epoch: int, answer: WriteAnswer) -> int:
        return self.epochs[epoch] if answer.epoch > epoch else answer.rows

    async def _window(self, epoch: int, first: int) -> list[WriteAnswer | None]:
        """Consecutive blocks, sent without waiting. None: the outcome of a block is unknown."""
        rng = self._rng
        async with asyncio.TaskGroup() as group:
            sent = []
            for _ in range(rng.randint(1, WINDOW_MAX)):
                rows = min(rng.randint(1, BLOCK_ROWS_MAX), self.epochs[epoch] - first)
                if rows > 0:
                    sent.append(group.create_task(self._send(self._client, epoch, first, rows)))
                first += rows
        return [one.result() for one in sent]

    async def _come_late(self, epoch: int) -> None:
        """A block of an earlier attempt, of this epoch or one before it, arrives late."""
        rng = self._rng
        await asyncio.sleep(rng.choice((0.0, 0.5, 2.0)) * rng.random())
        epoch = rng.randint(0, epoch)
        first = rng.randrange(self.epochs[epoch])
        rows = min(rng.randint(1, BLOCK_ROWS_MAX), self.epochs[epoch] - first)
        answer = await self._send(self._late, epoch, first, rows)
        if answer is not None and answer.epoch > epoch:
            self._scene.mark("a block of an earlier epoch comes late")

    async def _send(
        self, client: WorkClient, epoch: int, first: int, rows: int
    ) -> WriteAnswer | None:
        journal = self._scene.journal
        operation = journal.invoke(
            client.name, WRITE, id=self.name, epoch=epoch, row=first, rows=rows
        )
        head = encode_write(WriteHead(writer=self.name, epoch=epoch, row=first))
        block = self._block(epoch, first, rows)
        try:
            answer = await client.request(
                f"{WRITE_SUBJECT}{STREAM}".encode(),
                head + block,
                timeout_s=self._rng.choice((1.0, 4.0)),
            )
        except TimeoutError:
            return None
        if answer.status:
            return None
        try:
            told = decode_write_answer(answer.data)
        except PlanRefused:
            self._scene.mark("a block of a writer is refused for now")
            return None
        journal.ok(operation, told=told)
        return told

    def _block(self, epoch: int, first: int, rows: int) -> bytes:
        """The same rows in every attempt."""
        builder = BlockBuilder()
        for row in range(first, first + rows):
            subject = SUBJECTS[row % len(SUBJECTS)]
            builder.append(subject, b"", row_payload(self.name, epoch, row))
        return bytes(builder.build())


class BlockWriters:
    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._gap_s = rng.choice((0.1, 0.5))
        self._replicas = rng.choice((1, scene.replicas_max, scene.replicas_max))
        self._epochs = {
            f"sink-{number}": [rng.randint(1, 60) for _ in range(rng.randint(2, 12))]
            for number in range(rng.randint(1, 3))
        }

    def streams(self) -> Sequence[dict[str, Any]]:
        return [{"name": STREAM, "subjects": ["written.*"], "num_replicas": self._replicas}]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name, epochs in self._epochs.items():
                client, late = self._scene.client(name), self._scene.client(f"{name}-late")
                writer = EpochWriter(name, self._scene, client, late, epochs)
                tasks.create_task(writer.run(self._gap_s))

    def check(self) -> None:
        rows = rows_of(self._scene.replicas(STREAM))
        check_written(STREAM, self._scene.journal, rows, self._epochs)
