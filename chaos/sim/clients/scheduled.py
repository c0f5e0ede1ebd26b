"""Schedules: stored messages that publish others at a later time, once or again and again.

Owns: the stream and its schedules. Payloads are unique, so that a firing names its schedule.
May not touch: other workloads.
Checks (promises/firings.py): a schedule that stays fires, once for each due time and not before it,
whoever leads; one that was replaced does not fire any more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from broker.jetstream.times import rfc3339
from chaos.sim.clients.client import header_block
from chaos.sim.clients.publishing import publish_recorded
from chaos.sim.clients.workload import Scene, WorkClient
from chaos.sim.promises.firings import check_once, check_repeats, fired_by
from chaos.sim.promises.journal import Result
from chaos.sim.promises.stored import rows_of
from chaos.sim.world.virtual_time import EPOCH_NS, MS

STREAM: Final = "SCHEDULED"
ONCE, REPEAT, END = "schedule once", "schedule repeats", "end of a schedule"
REPEATS_MIN: Final = 3
LOOK_EVERY_S: Final = 0.5


class MessageSchedules:
    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._once = rng.randint(5, 15)
        self._repeating = rng.randint(0, 2)
        self._gap_s = rng.choice((0.1, 0.5))
        self._replicas = rng.choice((1, scene.replicas_max, scene.replicas_max))
        self._ended: dict[str, int] = {}  # subject -> sequence of the message that ended it

    def streams(self) -> Sequence[dict[str, Any]]:
        return [
            {
                "name": STREAM,
                "subjects": ["scheduled.>"],
                "num_replicas": self._replicas,
                "allow_msg_schedules": True,
            }
        ]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._schedule_once(self._scene.client("scheduler")))
            for number in range(self._repeating):
                client = self._scene.client(f"repeater-{number}")
                tasks.create_task(self._repeat(client, f"scheduled.every.{number}"))

    async def _schedule_once(self, client: WorkClient) -> None:
        rng = self._scene.rng
        acked: dict[str, int] = {}
        for number in range(self._once):
            now_ns = EPOCH_NS + self._scene.now_ns()
            due_ns = now_ns + rng.choice((0, 300, 1500, 4000)) * MS
            fields = {"Nats_Schedule": f"@at {rfc3339(due_ns)}", "due_ns": due_ns}
            subject = f"scheduled.once.{number}"
            if await self._publish(client, ONCE, subject, fields):
                acked[_target(subject)] = 1
            await asyncio.sleep(self._gap_s * 2 * rng.random())
        await self._until_fired(client, acked)

    async def _repeat(self, client: WorkClient, subject: str) -> None:
        fields = {"Nats_Schedule": "@every 1s"}
        if await self._publish(client, REPEAT, subject, fields):
            await self._until_fired(client, {_target(subject): REPEATS_MIN})
        seq = 0
        while not seq:
            seq = await self._publish(client, END, subject, {})
        self._ended[subject] = seq

    async def _publish(
        self, client: WorkClient, kind: str, subject: str, fields: dict[str, Any]
    ) -> int:
        """Returns the sequence, 0: refused or unknown."""
        journal = self._scene.journal
        payload = f"{kind}-{subject}".encode()
        headers = {name: value for name, value in fields.items() if name.startswith("Nats")}
        if headers:
            headers["Nats_Schedule_Target"] = _target(subject)
        operation = journal.invoke(
            client.name, kind, stream=STREAM, subject=subject, payload=payload, **fields
        )
        block = header_block(**headers) if headers else b""
        return await publish_recorded(
            self._scene, client, operation, subject, payload, headers=block
        )

    async def _until_fired(self, client: WorkClient, wanted: dict[str, int]) -> None:
        """Wait until the schedules have fired. If that never happens, the clients do not finish.
        `wanted`: target -> number of messages."""
        asked = {"subjects_filter": "scheduled.fired.>"}
        fired: dict[str, int] = {}
        while any(fired.get(target, 0) < count for target, count in wanted.items()):
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                answer = await client.api(f"STREAM.INFO.{STREAM}", asked)
            except TimeoutError:
                continue
            if "state" in answer:
                fired = answer["state"].get("subjects") or {}
        self._scene.mark("schedules fired")

    def check(self) -> None:
        rows = rows_of(self._scene.replicas(STREAM))
        journal = self._scene.journal
        for schedule in journal.of_kind(ONCE):
            check_once(STREAM, schedule, fired_by(rows, schedule.fields["subject"]))
        for schedule in journal.of_kind(REPEAT):
            if schedule.result is not Result.FAILED:
                subject = schedule.fields["subject"]
                fired = fired_by(rows, subject)
                check_repeats(STREAM, subject, fired, ended_seq=self._ended[subject])


def _target(subject: str) -> str:
    return f"scheduled.fired.{subject.partition('.')[2]}"
