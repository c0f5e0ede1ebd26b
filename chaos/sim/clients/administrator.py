"""An administrator purges, deletes, updates and scales a stream while others publish to it.

Owns: the stream, and which operations are tried.
May not touch: other workloads.
Checks (promises/removals.py): what an answered operation removed is gone and stays gone, nothing
else is; the configuration is the one that was answered last."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from chaos.sim.clients.client import header_block
from chaos.sim.clients.publishing import ANSWER_WITHIN_S, publish_recorded
from chaos.sim.clients.workload import Scene, WorkClient
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Operation, Result
from chaos.sim.promises.removals import DELETE, PUBLISH, PURGE, check_removals
from chaos.sim.promises.stored import rows_of

STREAM: Final = "MANAGED"
SUBJECTS: Final = ("managed.1", "managed.2")
LATE_S: Final = 30.0  # a change without an answer may still be made for this long
_UNCERTAIN: Final = {10008, 10005}  # no leader at the moment; the request may have been carried out


class StreamAdministration:
    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._publishes = rng.randint(20, 60)
        self._steps = rng.randint(4, 12)
        self._gap_s = rng.choice((0.1, 0.3, 0.6))
        self._sizes = sorted({1, min(3, scene.replicas_max), scene.replicas_max})
        self._config: dict[str, Any] = {
            "name": STREAM,
            "subjects": ["managed.*"],
            "num_replicas": rng.choice(self._sizes),
            "description": "0",
            "storage": "file",  # with one replica at times, nothing else survives a restart
        }
        self._acked: list[int] = []
        self._unknown_updates = 0

    def streams(self) -> Sequence[dict[str, Any]]:
        return [self._config]

    async def run(self) -> None:
        scene = self._scene
        async with asyncio.TaskGroup() as tasks:
            for number in range(2):
                tasks.create_task(self._publish(scene.client(f"managed-publisher-{number}")))
            await self._administer(scene.client("administrator"))

    # -- publishing -----------------------------------------------------------------------------

    async def _publish(self, client: WorkClient) -> None:
        rng, journal = self._scene.rng, self._scene.journal
        for number in range(self._publishes):
            subject, payload = rng.choice(SUBJECTS), f"{client.name}-{number}".encode()
            operation = journal.invoke(
                client.name, PUBLISH, stream=STREAM, subject=subject, payload=payload
            )
            headers = header_block(Nats_Msg_Id=payload.decode()) if number % 2 else b""
            seq = await publish_recorded(
                self._scene, client, operation, subject, payload, headers=headers
            )
            self._acked += [seq] if seq else []
            await asyncio.sleep(self._gap_s * rng.random())

    # -- administration -------------------------------------------------------------------------

    async def _administer(self, client: WorkClient) -> None:
        rng = self._scene.rng
        for step in range(self._steps):
            kind = rng.choice((self._purge, self._purge, self._delete, self._delete, self._update))
            await kind(client, step)
            if rng.random() < 0.2:
                client.disconnect()
            await asyncio.sleep(self._gap_s * 2 * rng.random())
        if self._unknown_updates:  # a node may still be trying, and its answer is not waited for
            await asyncio.sleep(LATE_S)
        answered = False
        while not answered:
            answered = await self._update(client, self._steps)
            await asyncio.sleep(0 if answered else LATE_S)

    async def _ask(self, client: WorkClient, operation: Operation, what: str, body: Any) -> Any:
        """The answer; None if the outcome is unknown."""
        try:
            answer = await client.api(f"{what}.{STREAM}", body, timeout_s=ANSWER_WITHIN_S)
        except TimeoutError:
            return None
        error = answer.get("error")
        if error is None:
            self._scene.journal.ok(operation, **{"purged": answer.get("purged", 0)})
        elif error["err_code"] in _UNCERTAIN or error["code"] == 503:
            return None
        else:
            self._scene.journal.failed(operation, error=error)
        return answer

    async def _purge(self, client: WorkClient, _step: int) -> None:
        rng = self._scene.rng
        body: dict[str, Any] = {}
        if rng.random() < 0.6:
            body["filter"] = rng.choice(SUBJECTS)
        bound = rng.random()
        if bound < 0.3 and self._acked:
            body["seq"] = rng.choice(self._acked[-10:]) + 1
        elif bound < 0.5:
            body["keep"] = rng.randint(1, 5)
        operation = self._scene.journal.invoke(client.name, PURGE, stream=STREAM, body=body)
        await self._ask(client, operation, "STREAM.PURGE", body)

    async def _delete(self, client: WorkClient, _step: int) -> None:
        rng = self._scene.rng
        if not self._acked:
            return
        body = {"seq": rng.choice(self._acked[-10:]), "no_erase": rng.random() < 0.5}
        operation = self._scene.journal.invoke(client.name, DELETE, stream=STREAM, body=body)
        await self._ask(client, operation, "STREAM.MSG.DELETE", body)

    async def _update(self, client: WorkClient, step: int) -> bool:
        """Whether it was answered."""
        wanted = {
            **self._config,
            "description": str(step + 1),
            "num_replicas": self._scene.rng.choice(self._sizes),
            "compression": "s2" if step % 2 else "none",
        }
        operation = self._scene.journal.invoke(client.name, "update", stream=STREAM, config=wanted)
        answer = await self._ask(client, operation, "STREAM.UPDATE", wanted)
        if answer is None or operation.result is Result.FAILED:
            self._unknown_updates += answer is None
            return False
        self._config = wanted
        self._scene.mark("stream updated")
        return True

    def check(self) -> None:
        replicas = self._scene.replicas(STREAM)
        for name, replica in replicas.items():
            told = replica.stream.config.description
            if told != self._config["description"]:
                raise BrokenPromise(
                    f"{STREAM}: {name} has configuration {told}, although "
                    f"{self._config['description']} was answered last"
                )
        check_removals(STREAM, self._scene.journal, rows_of(replicas))
