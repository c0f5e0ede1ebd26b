"""Readers: every kind of get, on every node, of a stream that is written now and then.

Owns: the stream and its idle times, which are longer than a group needs to fall asleep. Reads keep
it awake, so in some runs readers are idle as well, until they are told of a write. They stay
connected to a node that is cut off from its peers: a deposed leader must not answer them with old
messages.
May not touch: other workloads.
Checks: no read is older than a write that was acked, or than another read, before it was invoked;
none shows what was never written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from chaos.sim.clients.log_client import LogClient
from chaos.sim.clients.workload import Scene
from chaos.sim.promises.log_answers import check_log
from chaos.sim.promises.stored import rows_of
from chaos.sim.world.virtual_time import NS

STREAM: Final = "READ"
SUBJECTS: Final = ["read.1", "read.2"]
IMPATIENT_S: Final = 0.7  # then a writer moves to another node; a deposed leader does not notice


class RestingReaders:
    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._readers = rng.randint(3, 5)
        self._bursts = rng.randint(3, 8)
        self._rest_s = rng.choice((0.3, 1.0, 1.5, 2.5))
        self._read_gap_s = rng.choice((0.05, 0.2))
        self._replicas = rng.choice((1, scene.replicas_max, scene.replicas_max))
        self._read_for_s = rng.choice((0.3, None))  # after a write; None: always
        if self._read_for_s is not None:
            self._rest_s = rng.choice((1.5, 2.5, 4.0))
        self._newest = 0  # sequence that a writer has heard of
        self._heard_ns = 0  # when it heard of it
        self._writing = True

    def streams(self) -> Sequence[dict[str, Any]]:
        return [
            {
                "name": STREAM,
                "subjects": ["read.*"],
                "num_replicas": self._replicas,
                "allow_direct": True,
            }
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._readers):
                tasks.create_task(self._read(self._log(f"reader-{number}")))
            await self._write(self._log("read-writer"))
            self._writing = False

    def _log(self, name: str) -> LogClient:
        scene = self._scene
        return LogClient(scene.client(name), scene.journal, STREAM, answer_within_s=IMPATIENT_S)

    async def _write(self, log: LogClient) -> None:
        rng = self._scene.rng
        number = 0
        for _ in range(self._bursts):
            for _ in range(rng.randint(1, 4)):
                number += 1
                seq = await log.write(rng.choice(SUBJECTS), f"value-{number}".encode(), {})
                if seq > self._newest:
                    self._newest, self._heard_ns = seq, self._scene.now_ns()
                if not seq:
                    log.client.disconnect()  # perhaps another node can reach a leader
            await asyncio.sleep(self._rest_s * (0.5 + rng.random()))

    async def _read(self, log: LogClient) -> None:
        rng = self._scene.rng
        while self._writing:
            kind = rng.random()
            if self._rests():
                pass
            elif kind < 0.6:
                await log.last(rng.choice(SUBJECTS), direct=rng.random() < 0.6)
            elif kind < 0.75:
                await log.one(max(1, self._newest + rng.randint(-2, 1)), direct=rng.random() < 0.6)
            elif kind < 0.9:
                await log.last_of_each("read.*", SUBJECTS)
            else:
                await log.scan()
            await asyncio.sleep(self._read_gap_s * 2 * rng.random())

    def _rests(self) -> bool:
        quiet_ns = self._scene.now_ns() - self._heard_ns
        return self._read_for_s is not None and quiet_ns > self._read_for_s * NS

    def check(self) -> None:
        check_log(STREAM, self._scene.journal, rows_of(self._scene.replicas(STREAM)))
