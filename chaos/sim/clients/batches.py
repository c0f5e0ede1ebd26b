"""Batches: atomic and fast batches of several publishers, and messages repeated by their id.

Owns: the stream and the batches. The payload of a member names its batch and its position.
May not touch: other workloads.
Checks (promises/batches.py): an atomic batch is stored whole or not at all, a fast batch from its
beginning, both in order and each member once; acks tell the truth; a message id is stored once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

from chaos.sim.clients.client import ClientMessage, header_block
from chaos.sim.clients.publishing import ANSWER_WITHIN_S, publish_recorded
from chaos.sim.clients.workload import Scene, WorkClient
from chaos.sim.promises.batches import ATOMIC, FAST, REPEATED, check_batches, check_repeats
from chaos.sim.promises.journal import Result
from chaos.sim.promises.stored import rows_of

STREAM: Final = "BATCHED"
SUBJECTS: Final = ("batched.1", "batched.2")
APPEND_OPS: Final = {"start": 0, "append": 1, "commit": 2, "end": 3, "ping": 4}


def member(name: str, number: int) -> bytes:
    return f"{name}/{number}".encode()


class BatchPublisher:
    """One batch, or one repeated message, after the other."""

    def __init__(self, client: WorkClient, scene: Scene) -> None:
        self._client = client
        self._scene = scene
        self._rng = scene.rng
        self._batches = 0

    async def step(self) -> None:
        self._batches += 1
        name = f"{self._client.name}-{self._batches}"
        kind = self._rng.choice((self._atomic, self._atomic, self._fast, self._repeat))
        await kind(name)

    def _subject(self) -> str:
        return self._rng.choice(SUBJECTS)

    # -- atomic ---------------------------------------------------------------------------------

    async def _atomic(self, name: str) -> None:
        """Does not wait for the answers to members; the answer to the commit counts."""
        rng, journal = self._rng, self._scene.journal
        members = rng.randint(1, 6)
        operation = journal.invoke(self._client.name, ATOMIC, batch=name, members=members)
        for number in range(1, members):
            headers = header_block(Nats_Batch_Id=name, Nats_Batch_Sequence=str(number))
            self._client.publish(self._subject().encode(), member(name, number), headers=headers)
            if rng.random() < 0.3:
                await asyncio.sleep(0.1 * rng.random())
        headers = header_block(
            Nats_Batch_Id=name, Nats_Batch_Sequence=str(members), Nats_Batch_Commit="1"
        )
        await publish_recorded(
            self._scene,
            self._client,
            operation,
            self._subject(),
            member(name, members),
            headers=headers,
        )
        if operation.result is Result.FAILED:
            self._scene.mark("atomic batch refused")

    # -- fast -----------------------------------------------------------------------------------

    async def _fast(self, name: str) -> None:
        """Messages go out without waiting; flow acks and the end come to their reply subjects."""
        rng, client = self._rng, self._client
        members, gap = rng.randint(1, 12), rng.choice(("ok", "fail"))
        operation = self._scene.journal.invoke(
            client.name, FAST, batch=name, members=members, gap=gap, acked=0, gaps=[]
        )
        await client.until_connected()
        connects = client.connects
        done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        def take(message: ClientMessage) -> None:
            body = {"error": message.status} if message.status else json.loads(message.data)
            if body.get("type") == "ack":
                operation.fields["acked"] = max(body["seq"], operation.fields["acked"])
            elif body.get("type") == "gap":
                operation.fields["gaps"].append((body["last_seq"], body["seq"]))
            elif "type" not in body and not done.done():
                done.set_result(body)

        prefix = client.new_inbox()
        sid = client.subscribe(prefix + b".>", take)
        try:
            for number in range(1, members + 1):
                op = "commit" if number == members else "start" if number == 1 else "append"
                self._send_fast(prefix, name, number, op, gap)
                if rng.random() < 0.3:
                    await asyncio.sleep(0.05 * rng.random())
            async with asyncio.timeout(ANSWER_WITHIN_S):
                body = await done
        except TimeoutError:
            return
        finally:
            operation.fields["whole"] = client.connects == connects
            client.unsubscribe(sid)
        if "error" in body:
            self._scene.journal.failed(operation, error=body["error"])
        else:
            self._scene.journal.ok(operation, **body)

    def _send_fast(self, prefix: bytes, name: str, number: int, op: str, gap: str) -> None:
        rest = f".{name}.4.{gap}.{number}.{APPEND_OPS[op]}.$FI"
        self._client.publish(
            self._subject().encode(), member(name, number), reply=prefix + rest.encode()
        )

    # -- message ids ----------------------------------------------------------------------------

    async def _repeat(self, name: str) -> None:
        """The same message id several times, also after it was acked and from another node."""
        rng, journal = self._rng, self._scene.journal
        for attempt in range(rng.randint(2, 4)):
            payload = member(name, attempt)
            operation = journal.invoke(self._client.name, REPEATED, id=name, payload=payload)
            await publish_recorded(
                self._scene,
                self._client,
                operation,
                self._subject(),
                payload,
                headers=header_block(Nats_Msg_Id=name),
                timeout_s=ANSWER_WITHIN_S / 4,
            )
            if operation.result is Result.UNKNOWN:
                self._client.disconnect()
                continue
            await asyncio.sleep(rng.choice((0, 0.1, 1)) * rng.random())


class BatchPublishers:
    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._publishers = rng.randint(1, 3)
        self._steps = rng.randint(6, 20)
        self._gap_s = rng.choice((0.05, 0.3, 0.6))
        self._replicas = rng.choice((1, scene.replicas_max, scene.replicas_max))

    def streams(self) -> Sequence[dict[str, Any]]:
        return [
            {
                "name": STREAM,
                "subjects": ["batched.*"],
                "num_replicas": self._replicas,
                "allow_atomic": True,
                "allow_batched": True,
            }
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._publishers):
                client = self._scene.client(f"batcher-{number}")
                tasks.create_task(self._work(BatchPublisher(client, self._scene)))

    async def _work(self, publisher: BatchPublisher) -> None:
        for _ in range(self._steps):
            await publisher.step()
            await asyncio.sleep(self._gap_s * self._scene.rng.random())

    def check(self) -> None:
        rows = rows_of(self._scene.replicas(STREAM))
        check_batches(STREAM, self._scene.journal, rows)
        check_repeats(STREAM, self._scene.journal, rows)
