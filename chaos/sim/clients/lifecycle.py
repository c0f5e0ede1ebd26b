"""A stream is deleted and created again, over and over, while others publish to it.

Owns: the stream and its lives. A payload names the life in which it was published.
May not touch: other workloads.
Checks: a new life begins empty, messages are stored as they were acked, and a publish on a
connection that stays open gets an answer, whether the stream exists or not.
Not promised: that nodes which do not know of the delete yet stop acking immediately. The table of
streams is a Raft group of its own, and a stream continues without it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

from chaos.sim.clients.workload import Scene, WorkClient
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Operation, Result
from chaos.sim.promises.stored import rows_of

STREAM: Final = "REBORN"
SUBJECT: Final = b"reborn"
PUBLISH, CREATE, REMOVE = "publish to a reborn stream", "create", "remove"
ANSWER_WITHIN_S: Final = 4.0
PATIENCE_S: Final = 45.0  # more than all faults together last


class RebornStream:
    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._lives = rng.randint(1, 4)
        self._life_s = rng.choice((0.2, 0.8, 2.0))
        self._gap_s = rng.choice((0.02, 0.1, 0.3))
        self._config = {
            "name": STREAM,
            "subjects": [SUBJECT.decode()],
            "num_replicas": rng.choice((1, scene.replicas_max)),
        }
        self._working = True
        self._unanswered = ""

    def streams(self) -> Sequence[dict[str, Any]]:
        return [self._config]

    async def run(self) -> None:
        scene = self._scene
        async with asyncio.TaskGroup() as tasks:
            for number in range(2):
                tasks.create_task(self._publish(scene.client(f"reborn-publisher-{number}")))
            client = scene.client("lives")
            for _ in range(self._lives):
                await asyncio.sleep(self._life_s * 2 * scene.rng.random())
                await self._until_done(client, REMOVE, "STREAM.DELETE", None)
                await asyncio.sleep(self._life_s * scene.rng.random())
                await self._until_done(client, CREATE, "STREAM.CREATE", self._config)
            await asyncio.sleep(self._life_s)
            self._working = False

    async def _until_done(self, client: WorkClient, kind: str, what: str, body: Any) -> None:
        """Retry until it is done. A delete that finds no stream is done: an earlier attempt without
        an answer was carried out."""
        done = False
        operation = self._scene.journal.invoke(client.name, kind, stream=STREAM)
        while not done:
            try:
                answer = await client.api(f"{what}.{STREAM}", body, timeout_s=ANSWER_WITHIN_S)
            except TimeoutError:
                continue
            done = "error" not in answer or (kind == REMOVE and answer["error"]["code"] == 404)
            await asyncio.sleep(0 if done else 0.1)
        self._scene.journal.ok(operation)

    async def _publish(self, client: WorkClient) -> None:
        number = 0
        while self._working:
            number += 1
            await self._publish_one(client, f"{client.name}-{number}".encode())
            await asyncio.sleep(self._gap_s * 2 * self._scene.rng.random())

    async def _publish_one(self, client: WorkClient, payload: bytes) -> None:
        journal = self._scene.journal
        await client.until_connected()
        connects = client.connects
        operation = journal.invoke(client.name, PUBLISH, stream=STREAM, payload=payload)
        asked = asyncio.ensure_future(client.request(SUBJECT, payload, timeout_s=PATIENCE_S))
        while not asked.done():
            await asyncio.wait({asked}, timeout=0.2)
            if not client.connected or client.connects != connects:
                asked.cancel()
                return
        if asked.exception() is not None:
            self._unanswered = (
                f"{STREAM}: {payload.decode()} of {operation.invoked_ns / 1e9:.4f} s had no answer "
                f"for {PATIENCE_S} s on a connection that stayed"
            )
            return
        answer = asked.result()
        body = {"error": answer.status} if answer.status else json.loads(answer.data)
        if "error" in body:
            self._scene.mark("publish to a deleted stream answered")
            journal.failed(operation)
        else:
            journal.ok(operation, seq=body["seq"])

    def check(self) -> None:
        if self._unanswered:
            raise BrokenPromise(self._unanswered)
        journal = self._scene.journal
        ended = journal.of_kind(REMOVE)[-1]
        stored = {row.data: row.seq for row in rows_of(self._scene.replicas(STREAM))}
        for one in journal.of_kind(PUBLISH):
            self._check_publish(one, stored.get(one.fields["payload"]), ended)

    def _check_publish(self, one: Operation, seq: int | None, ended: Operation) -> None:
        told = f"{STREAM}: {one.fields['payload'].decode()} of {one.invoked_ns / 1e9:.4f} s"
        if one.result is Result.FAILED and seq is not None:
            raise BrokenPromise(f"{told} was refused, but is stored as {seq}")
        if one.result is not Result.OK:
            return
        if seq is not None and one.completed_ns < ended.invoked_ns:
            raise BrokenPromise(f"{told} was acked before the stream was deleted, and is back")
        if seq is not None and seq != one.answer["seq"]:
            raise BrokenPromise(f"{told} was acked as {one.answer['seq']}, is stored as {seq}")
