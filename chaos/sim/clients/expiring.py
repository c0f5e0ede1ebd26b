"""Messages that expire: by the age of the stream and by a time to live of their own, with limits.

Owns: the stream, and when its messages are read.
May not touch: other workloads.
Checks: no message disappears before its time, none exists long after it, and limits hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from chaos.sim.clients.client import header_block
from chaos.sim.clients.publishing import publish_recorded
from chaos.sim.clients.workload import Scene, WorkClient
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Result
from chaos.sim.promises.stored import rows_of
from chaos.sim.world.virtual_time import NS

STREAM: Final = "EXPIRING"
SUBJECTS: Final = ("expiring.1", "expiring.2", "expiring.3")
PUBLISH, LOOK = "publish of an expiring message", "look at an expiring message"
_NO_MESSAGE_FOUND: Final = 10037
_FOREVER_S: Final = 1000


class ExpiringMessages:
    """With limits on the number of messages, only the limits are checked: then a message may go
    at any time."""

    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._publishes = rng.randint(10, 30)
        self._gap_s = rng.choice((0.1, 0.4))
        self._age_s = rng.choice((1, 3, _FOREVER_S))
        self._limit = rng.choice((-1, -1, 5))
        self._per_subject = rng.choice((-1, -1, 2))
        self._discard = rng.choice(("old", "new")) if self._limit > 0 else "old"
        self._config = {
            "name": STREAM,
            "subjects": ["expiring.*"],
            "num_replicas": rng.choice((1, scene.replicas_max, scene.replicas_max)),
            "max_age": self._age_s * NS,
            "duplicate_window": min(self._age_s, 100) * NS,
            "allow_msg_ttl": True,
            "max_msgs": self._limit,
            "max_msgs_per_subject": self._per_subject,
            "discard": self._discard,
        }

    def streams(self) -> Sequence[dict[str, Any]]:
        return [self._config]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(2):
                tasks.create_task(self._work(self._scene.client(f"expiring-{number}")))
        if self._age_s != _FOREVER_S:
            await self._until_empty(self._scene.client("expired"))

    async def _work(self, client: WorkClient) -> None:
        rng = self._scene.rng
        seqs: list[int] = []
        for number in range(self._publishes):
            seq = await self._publish(client, f"{client.name}-{number}".encode())
            seqs += [seq] if seq else []
            if seqs and rng.random() < 0.7:
                await self._look(client, rng.choice(seqs[-8:]))
            await asyncio.sleep(self._gap_s * 2 * rng.random())

    async def _publish(self, client: WorkClient, payload: bytes) -> int:
        rng, journal = self._scene.rng, self._scene.journal
        ttl = rng.choice((0, 0, 1, 2))
        operation = journal.invoke(
            client.name, PUBLISH, payload=payload, lasts_s=ttl or self._age_s, ttl=ttl
        )
        headers = header_block(Nats_TTL=f"{ttl}s") if ttl else b""
        return await publish_recorded(
            self._scene, client, operation, rng.choice(SUBJECTS), payload, headers=headers
        )

    async def _look(self, client: WorkClient, seq: int) -> None:
        operation = self._scene.journal.invoke(client.name, LOOK, seq=seq)
        try:
            answer = await client.api(f"STREAM.MSG.GET.{STREAM}", {"seq": seq})
        except TimeoutError:
            return
        if "error" not in answer:
            self._scene.journal.ok(operation, found=True)
        elif answer["error"]["err_code"] == _NO_MESSAGE_FOUND:
            self._scene.journal.ok(operation, found=False)

    async def _until_empty(self, client: WorkClient) -> None:
        """Wait until everything has expired. If that never happens, the clients do not finish."""
        messages = 1
        while messages:
            await asyncio.sleep(0.5)
            try:
                answer = await client.api(f"STREAM.INFO.{STREAM}")
            except TimeoutError:
                continue
            messages = answer["state"]["messages"] if "state" in answer else 1
        self._scene.mark("everything expired")

    def check(self) -> None:
        rows = rows_of(self._scene.replicas(STREAM))
        if 0 < self._limit < len(rows):
            raise BrokenPromise(f"{STREAM}: {len(rows)} messages with a limit of {self._limit}")
        published = {row.data for row in rows}
        journal = self._scene.journal
        for one in journal.of_kind(PUBLISH):
            if one.result is Result.FAILED and one.fields["payload"] in published:
                raise BrokenPromise(f"{STREAM}: {one.fields['payload']!r} was refused, but stored")
        if self._limit < 0 and self._per_subject < 0:
            self._check_early()

    def _check_early(self) -> None:
        journal = self._scene.journal
        by_seq = {
            one.answer["seq"]: one for one in journal.of_kind(PUBLISH) if one.result is Result.OK
        }
        for look in journal.of_kind(LOOK):
            one = by_seq.get(look.fields["seq"])
            if one is None or look.result is not Result.OK or look.answer["found"]:
                continue
            lasts_ns = min(one.fields["lasts_s"], self._age_s) * NS
            if look.completed_ns < one.invoked_ns + lasts_ns - self._scene.clock_error_ns:
                raise BrokenPromise(
                    f"{STREAM}: {one.fields['payload']!r} was to last {lasts_ns / NS} s, was "
                    f"published at {one.invoked_ns / NS:.4f} s and was gone at "
                    f"{look.completed_ns / NS:.4f} s"
                )
