"""Registers: writers compare and set the same few keys of a key-value bucket.

Owns: the bucket and the expectations that writers put into their publishes.
May not touch: other workloads.
Checks: expectations hold where a write is stored, and all answers (acks, refusals, gets) are
linearizable over the whole bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from chaos.sim.clients.log_client import LogClient
from chaos.sim.clients.workload import Scene
from chaos.sim.promises.log_answers import check_log
from chaos.sim.promises.stored import rows_of

BUCKET: Final = "KV_REGISTERS"
PREFIX: Final = "$KV.REGISTERS."


class RegisterWriter:
    """One writer: what it last heard about each key, and its next operation."""

    def __init__(self, log: LogClient, scene: Scene, keys: Sequence[str]) -> None:
        self._log = log
        self._rng = scene.rng
        self._keys = keys
        self._known = dict.fromkeys(keys, 0)  # key -> last sequence it has seen
        self._last_seq = 0
        self._last_id = ""
        self._writes = 0

    async def step(self) -> None:
        rng = self._rng
        key = rng.choice(self._keys)
        kind = rng.choices(
            ("get", "update", "create", "delete", "put", "last seq", "last id", "stream"),
            (25, 40, 8, 6, 6, 6, 5, 2),
        )[0]
        if kind == "get":
            seq = await self._log.last(key, direct=rng.random() < 0.6)
            if seq is not None:
                self._known[key] = seq
        else:
            await self._write(kind, key)

    async def _write(self, kind: str, key: str) -> None:
        self._writes += 1
        name = f"{self._log.name}-{self._writes}"
        expected, headers = self._expectation(kind, key, name)
        seq = await self._log.write(key, name.encode(), expected, **headers)
        if seq:
            self._known[key] = self._last_seq = seq
            self._last_id = headers.get("Nats_Msg_Id", "")
        elif expected and self._rng.random() < 0.5:  # learn what it is, as an application would
            known = await self._log.last(key, direct=False)
            if known is not None:
                self._known[key] = known
                self._last_seq = max(known, self._last_seq)

    def _expectation(self, kind: str, key: str, name: str) -> tuple[dict[str, Any], dict[str, str]]:
        match kind:
            case "update":
                return {"subject_seq": self._known[key]}, {}
            case "create":
                return {"subject_seq": 0}, {}
            case "delete":
                return {"subject_seq": self._known[key]}, {"KV_Operation": "DEL"}
            case "last seq":
                return {"seq": self._last_seq}, {}
            case "last id":
                return {"msg_id": self._last_id} if self._last_id else {}, {"Nats_Msg_Id": name}
            case "stream":
                return {"stream": self._rng.choice((BUCKET, "ANOTHER"))}, {}
            case _:
                return {}, {}


class CompareAndSet:
    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._writers = rng.randint(2, 4)
        self._steps = rng.randint(15, 40)
        self._gap_s = rng.choice((0.02, 0.2, 0.5))
        self._keys = [f"{PREFIX}{number}" for number in range(rng.randint(1, 3))]
        self._replicas = rng.choice((1, scene.replicas_max, scene.replicas_max))

    def streams(self) -> Sequence[dict[str, Any]]:
        return [
            {
                "name": BUCKET,
                "subjects": [PREFIX + ">"],
                "num_replicas": self._replicas,
                "allow_direct": True,
                "allow_rollup_hdrs": True,
                "deny_delete": True,
                "discard": "new",
            }
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._writers):
                client = self._scene.client(f"writer-{number}")
                log = LogClient(client, self._scene.journal, BUCKET)
                tasks.create_task(self._work(RegisterWriter(log, self._scene, self._keys)))

    async def _work(self, writer: RegisterWriter) -> None:
        for _ in range(self._steps):
            await writer.step()
            await asyncio.sleep(self._gap_s * self._scene.rng.random())

    def check(self) -> None:
        check_log(BUCKET, self._scene.journal, rows_of(self._scene.replicas(BUCKET)))
