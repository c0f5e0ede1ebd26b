"""Consumers that are updated, paused and resumed while clients fetch from them.

Owns: the stream, its consumers, what an administrator changes about them, and what was answered.
May not touch: other workloads; what clients answer is in pull_workers.py.
Checks: the configuration in force, and the one that consumer info shows, is the one that was
answered last; nothing is delivered while a pause that was answered lasts (promises/dispatches.py);
what every filter selected was delivered, and nothing that none did."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from broker.jetstream.times import rfc3339
from chaos.sim.clients.workload import Scene, WorkClient
from chaos.sim.consumers.consuming import create_consumer, publish_some
from chaos.sim.consumers.pull_workers import PullWorkers
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.consumed import ConsumerRecord, check_floors, check_replicas
from chaos.sim.promises.seen_replica import SeenReplica
from chaos.sim.promises.stored import rows_of
from chaos.sim.world.virtual_time import EPOCH_NS, MS, NS

STREAM: Final = "CHANGED"
SUBJECTS: Final = ("changed.a", "changed.b")
ANSWER_WITHIN_S: Final = 4.0
LATE_S: Final = 30.0  # a change without an answer may still be made for this long
LONG_PAUSE_NS: Final = 36_000 * NS  # longer than the error of any clock
SHORT_PAUSE_NS: Final = 2 * NS  # ends by itself
ACK_WAITS_NS: Final = (700 * MS, 2 * NS)
# At the end: with one message at a time, the rest would take longer than a cluster has to settle.
SWIFT: Final = {"max_ack_pending": 1000, "ack_wait": ACK_WAITS_NS[0]}


@dataclass(slots=True)
class ChangedConsumer:
    """`version` is in the description of the configuration. `certain_ns`: after this time, no
    change without an answer can still be made."""

    record: ConsumerRecord
    version: int = 0
    paused: bool = False
    certain_ns: int = 0
    filters: set[str] = field(default_factory=set)  # that were ever asked for
    wrong: str = ""  # what consumer info showed

    @property
    def selected_always(self) -> Sequence[str]:
        """Subjects that every filter selects."""
        return [one for one in SUBJECTS if self.filters <= {"", one}]


class ChangedConsumers:
    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._publishes = rng.randint(10, 40)
        self._gap_s = rng.choice((0.1, 0.3))
        self._change_gap_s = rng.choice((0.2, 0.8))
        self._changes = rng.randint(4, 12)
        self._replicas = rng.choice((1, scene.replicas_max, scene.replicas_max))
        self._workers = rng.randint(1, 2)
        self._changed = [self._drawn(number) for number in range(rng.randint(1, 2))]

    def _drawn(self, number: int) -> ChangedConsumer:
        rng = self._scene.rng
        name = f"changed-{number}"
        config = {
            "durable_name": name,
            "ack_policy": "explicit",
            "description": "0",
            **self._values(),
        }
        self._scene.dispatches.timed(STREAM, name, least_ns=min(ACK_WAITS_NS))
        filters = {config["filter_subject"]}
        if rng.random() < 0.5:
            config["inactive_threshold"] = 3600 * NS
        return ChangedConsumer(ConsumerRecord(STREAM, config), filters=filters)

    def _values(self) -> dict[str, Any]:
        rng = self._scene.rng
        return {
            "max_ack_pending": rng.choice((1, 3, 1000)),
            "ack_wait": rng.choice(ACK_WAITS_NS),
            "filter_subject": rng.choice(("", "", SUBJECTS[0])),
        }

    def streams(self) -> Sequence[dict[str, Any]]:
        return [{"name": STREAM, "subjects": ["changed.*"], "num_replicas": self._replicas}]

    async def run(self) -> None:
        admin = self._scene.client("changed-admin")
        for one in self._changed:
            await create_consumer(admin, STREAM, one.record.config)
        workers = PullWorkers(self._scene, admin)
        async with asyncio.TaskGroup() as tasks:
            for one in self._changed:
                workers.start(tasks, one.record, self._workers)
            publisher = self._scene.client("changed-publisher")
            publishing = tasks.create_task(
                publish_some(self._scene, publisher, SUBJECTS, self._publishes, gap_s=self._gap_s)
            )
            changing = [
                asyncio.create_task(
                    self._change(self._scene.client(f"changes-{one.record.name}"), one)
                )
                for one in self._changed
            ]
            for task in (publishing, *changing):
                await task
            workers.over = True

    async def _change(self, client: WorkClient, one: ChangedConsumer) -> None:
        rng = self._scene.rng
        for _ in range(self._changes):
            gap_s = self._change_gap_s * (5 if one.paused else 2)
            await asyncio.sleep(gap_s * rng.random())
            kind = rng.random()
            if kind < 0.5:
                await self._update(client, one)
            elif kind < 0.8:
                await self._pause(client, one, rng.choice((LONG_PAUSE_NS, SHORT_PAUSE_NS)))
            else:
                await self._pause(client, one, 0)
            await self._look(client, one)
            if rng.random() < 0.1:
                client.disconnect()
        settled = False
        while not settled:  # no change without an answer may take effect after the last ones
            await asyncio.sleep(max(one.certain_ns - self._scene.now_ns(), 0) / NS)
            settled = await self._update(client, one, **SWIFT) and await self._pause(client, one, 0)

    async def _ask(
        self, client: WorkClient, one: ChangedConsumer, kind: str, subject: str, body: Any
    ) -> bool:
        """Whether it was certainly done."""
        journal = self._scene.journal
        operation = journal.invoke(client.name, kind, stream=STREAM, body=body)
        try:
            answer = await client.api(
                f"CONSUMER.{subject}.{STREAM}.{one.record.name}", body, timeout_s=ANSWER_WITHIN_S
            )
        except TimeoutError:
            answer = {"error": "no answer"}
        if "error" not in answer:
            journal.ok(operation)
            return True
        one.certain_ns = self._scene.now_ns() + int(LATE_S * NS)
        return False

    async def _update(self, client: WorkClient, one: ChangedConsumer, **fixed: int) -> bool:
        version = {"description": str(one.version + 1)}
        wanted = {**one.record.config, **self._values(), **fixed, **version}
        one.filters.add(wanted["filter_subject"])
        body = {"stream_name": STREAM, "config": wanted, "action": "update"}
        if not await self._ask(client, one, "update consumer", "CREATE", body):
            return False
        one.version += 1
        one.record.config = wanted
        self._scene.mark("consumer updated")
        return True

    async def _pause(self, client: WorkClient, one: ChangedConsumer, lasts_ns: int) -> bool:
        """0: resume."""
        self._scene.dispatches.resumed(STREAM, one.record.name)
        now_ns = self._scene.now_ns()
        one.paused = False
        body = {"pause_until": rfc3339(EPOCH_NS + now_ns + lasts_ns)} if lasts_ns else None
        if not await self._ask(client, one, "pause", "PAUSE", body):
            return False
        if lasts_ns == LONG_PAUSE_NS and now_ns >= one.certain_ns:
            one.paused = True
            self._scene.dispatches.paused(STREAM, one.record.name)
            self._scene.mark("consumer paused")
        return True

    async def _look(self, client: WorkClient, one: ChangedConsumer) -> None:
        """Consumer info, asked after an answer, shows what was answered."""
        try:
            info = await client.api(f"CONSUMER.INFO.{STREAM}.{one.record.name}", timeout_s=2.0)
        except TimeoutError:
            return
        if "error" in info or self._scene.now_ns() < one.certain_ns:
            return
        title, shown = one.record.title, info["config"].get("description")
        if shown != str(one.version):
            one.wrong = f"{title}: info shows version {shown}, {one.version} was answered"
        if one.paused and not info.get("paused"):
            one.wrong = f"{title}: info shows no pause, although one was answered"

    def check(self) -> None:
        replicas = self._scene.replicas(STREAM)
        for one in self._changed:
            if one.wrong:
                raise BrokenPromise(one.wrong)
            check_replicas(one.record, replicas)
            check_floors(one.record)
            _check_config(one, replicas)
            _check_received(one, replicas)


def _check_config(one: ChangedConsumer, replicas: Mapping[str, SeenReplica]) -> None:
    wanted = one.record.config
    for node, replica in replicas.items():
        config = replica.stream.consumers[one.record.name].config
        for name in ("description", "max_ack_pending", "ack_wait", "filter_subject"):
            if getattr(config, name) != wanted[name]:
                raise BrokenPromise(
                    f"{one.record.title}: {node} has {name} {getattr(config, name)}, although "
                    f"{wanted[name]} was answered last"
                )
        if config.pause_until:
            raise BrokenPromise(f"{one.record.title}: {node} has a pause that was ended")


def _check_received(one: ChangedConsumer, replicas: Mapping[str, SeenReplica]) -> None:
    rows = {row.seq: row for row in rows_of(replicas)}
    received = {message.seq for message in one.record.received}
    possible = SUBJECTS if "" in one.filters else tuple(one.filters)
    if strange := [seq for seq in received if rows[seq].subject.decode() not in possible]:
        raise BrokenPromise(f"{one.record.title}: received {strange}, which no filter selects")
    last = one.record.infos[-1]["delivered"]["stream_seq"]
    always = one.selected_always
    due = {seq for seq, row in rows.items() if seq <= last and row.subject.decode() in always}
    if missing := due - received:
        raise BrokenPromise(f"{one.record.title}: nobody received {sorted(missing)}")
