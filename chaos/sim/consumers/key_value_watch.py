"""Watchers of a key-value bucket, while others put, delete and purge keys.

Owns: the bucket, its writers and its watchers.
May not touch: other workloads.
Checks: a watcher sees revisions in order, each with the value that was acked; it has seen the last
one of every key, and every one that is still stored, also when it lost its connection meanwhile.
Spec: NATS ADR-8 (key-value), ADR-17 (ordered consumers): a watcher reads through an ephemeral push
consumer without acks; after a gap, a silence or a refusal it creates another one that starts after
the last revision it has seen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from broker.wire import headers as wire_headers
from chaos.sim.clients.client import ClientMessage, header_block
from chaos.sim.clients.workload import Scene, WorkClient
from chaos.sim.consumers.consuming import received_of
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.stored import rows_of
from chaos.sim.world.virtual_time import MS, NS

STREAM: Final = "KV_WATCHED"
PREFIX: Final = "$KV.WATCHED."
KEYS: Final = ("a", "b", "c.d", "e")
END: Final = "end"  # the key that is put last
HEARTBEAT_NS: Final = 500 * MS
SILENCE_S: Final = 1.5
LAST_CONSUMER: Final = b"Nats-Last-Consumer"
STALLED: Final = b"Nats-Consumer-Stalled"
CONTROL_STATUS: Final = 100


@dataclass(slots=True)
class Revision:
    seq: int
    subject: bytes
    operation: bytes  # empty: put
    data: bytes


@dataclass(slots=True)
class KeyWatcher:
    """`early`: it has watched since before the first put. `begun_with` and `seen_with`: the numbers
    of the first consumer, and of the one that delivered the first message. If they differ, only the
    last revision of each key had to be delivered at first."""

    client: WorkClient
    early: bool
    seen: list[Revision] = field(default_factory=list)
    consumers: int = 0
    expected: int = 1  # the next consumer sequence
    gap: bool = False
    begun_with: int = 0
    seen_with: int = 0

    @property
    def sees_all(self) -> bool:
        return self.early and self.begun_with == self.seen_with

    @property
    def last(self) -> int:
        return self.seen[-1].seq if self.seen else 0


class KeyValueWatch:
    def __init__(self, scene: Scene) -> None:
        rng = scene.rng
        self._scene = scene
        self._changes = rng.randint(15, 50)
        self._gap_s = rng.choice((0.05, 0.2, 0.4))
        self._history = rng.choice((1, 1, 5, 64))
        self._replicas = rng.choice((1, scene.replicas_max, scene.replicas_max))
        self._watchers: list[KeyWatcher] = []
        self._acked: dict[int, bytes] = {}
        self._end = 0  # the revision of the last put

    def streams(self) -> Sequence[dict[str, Any]]:
        return [
            {
                "name": STREAM,
                "subjects": [f"{PREFIX}>"],
                "num_replicas": self._replicas,
                "max_msgs_per_subject": self._history,
                "discard": "new",
                "allow_rollup_hdrs": True,
                "deny_delete": True,
                "allow_direct": True,
            }
        ]

    async def run(self) -> None:
        rng = self._scene.rng
        async with asyncio.TaskGroup() as tasks:
            await self._begin(tasks, early=True)
            writers = [
                tasks.create_task(self._write(self._scene.client(f"kv-writer-{number}")))
                for number in range(2)
            ]
            for _ in range(rng.randint(0, 2)):
                await asyncio.sleep(3 * rng.random())
                await self._begin(tasks, early=False)
            for writer in writers:
                await writer
            client = self._scene.client("kv-last-writer")
            while not self._end:
                self._end = await self._put(client, END, b"end", b"")

    # -- writing --------------------------------------------------------------------------------

    async def _write(self, client: WorkClient) -> None:
        rng = self._scene.rng
        for number in range(self._changes):
            kind = rng.random()
            headers = b""
            if kind > 0.9:
                headers = header_block(KV_Operation="PURGE", Nats_Rollup="sub")
            elif kind > 0.75:
                headers = header_block(KV_Operation="DEL")
            value = b"" if headers else f"{client.name}-{number}".encode()
            await self._put(client, rng.choice(KEYS), value, headers)
            await asyncio.sleep(self._gap_s * 2 * rng.random())

    async def _put(self, client: WorkClient, key: str, value: bytes, headers: bytes) -> int:
        """The revision, 0 if it is unknown."""
        try:
            answer = await client.request(f"{PREFIX}{key}".encode(), value, headers=headers)
        except TimeoutError:
            return 0
        if answer.status or "error" in answer.json():
            return 0
        revision = int(answer.json()["seq"])
        self._acked[revision] = value
        return revision

    # -- watching -------------------------------------------------------------------------------

    async def _begin(self, tasks: asyncio.TaskGroup, *, early: bool) -> None:
        watcher = KeyWatcher(self._scene.client(f"watcher-{len(self._watchers)}"), early)
        self._watchers.append(watcher)
        begun = asyncio.Event()
        tasks.create_task(self._watch(watcher, begun))
        await begun.wait()

    async def _watch(self, watcher: KeyWatcher, begun: asyncio.Event) -> None:
        """One consumer after the other, until the last put is seen."""
        rng, client = self._scene.rng, watcher.client
        while not self._end or watcher.last < self._end:
            inbox = client.new_inbox()
            arrived = asyncio.Event()
            take = self._taking(watcher, arrived)
            watcher.expected, watcher.gap = 1, False
            sid = client.subscribe(inbox, take)
            if await self._create(watcher, inbox):
                begun.set()
                watcher.begun_with = watcher.begun_with or watcher.consumers
                await self._until_lost(watcher, arrived)
            client.unsubscribe(sid)
            await asyncio.sleep(0.1 * rng.random())

    async def _until_lost(self, watcher: KeyWatcher, arrived: asyncio.Event) -> None:
        while not watcher.gap and not 0 < self._end <= watcher.last:
            arrived.clear()
            if self._scene.rng.random() < 0.01:
                watcher.client.disconnect()
            try:
                async with asyncio.timeout(SILENCE_S):
                    await arrived.wait()
            except TimeoutError:
                self._scene.mark("watcher begins again after a silence")
                return
        if watcher.gap:
            self._scene.mark("watcher begins again after a gap")

    async def _create(self, watcher: KeyWatcher, inbox: bytes) -> bool:
        watcher.consumers += 1
        name = f"{watcher.client.name}-{watcher.consumers}"
        config = {
            "name": name,
            "deliver_subject": inbox.decode(),
            "deliver_policy": "by_start_sequence" if watcher.seen else "last_per_subject",
            "ack_policy": "none",
            "filter_subject": f"{PREFIX}>",
            "flow_control": True,
            "idle_heartbeat": HEARTBEAT_NS,
            "inactive_threshold": 5 * NS,
            "mem_storage": True,
            "num_replicas": 1,
        }
        if watcher.seen:
            config["opt_start_seq"] = watcher.last + 1
        try:
            answer = await watcher.client.api(
                f"CONSUMER.CREATE.{STREAM}.{name}", {"stream_name": STREAM, "config": config}
            )
        except TimeoutError:
            return False
        return "error" not in answer

    def _taking(self, watcher: KeyWatcher, arrived: asyncio.Event) -> Any:
        def take(message: ClientMessage) -> None:
            arrived.set()
            if message.status == CONTROL_STATUS:
                last = wire_headers.get(message.headers, LAST_CONSUMER)
                watcher.gap = watcher.gap or int(last or 0) >= watcher.expected
                answer = message.reply or wire_headers.get(message.headers, STALLED)
                if answer:
                    watcher.client.publish(answer, b"")
                return
            received = received_of(message)
            if received is None or watcher.gap:
                return
            if received.consumer_seq != watcher.expected:
                watcher.gap = True
                return
            watcher.expected += 1
            watcher.seen_with = watcher.seen_with or watcher.consumers
            operation = wire_headers.get(message.headers, b"KV-Operation") or b""
            watcher.seen.append(Revision(received.seq, message.subject, operation, message.data))

        return take

    # -- the end --------------------------------------------------------------------------------

    def check(self) -> None:
        rows = [row for row in rows_of(self._scene.replicas(STREAM)) if row.seq <= self._end]
        newest = {row.subject: row for row in rows}
        for watcher in self._watchers:
            name = watcher.client.name
            _check_order(name, watcher.seen, self._acked)
            seen = {one.seq: one for one in watcher.seen}
            for row in rows if watcher.sees_all else newest.values():
                one = seen.get(row.seq)
                if one is None:
                    raise BrokenPromise(f"{name} has missed revision {row.seq} of {row.subject!r}")
                if (one.subject, one.data) != (row.subject, row.data):
                    raise BrokenPromise(f"{name} has seen {one}, stored is {row}")


def _check_order(name: str, seen: Sequence[Revision], acked: dict[int, bytes]) -> None:
    for before, after in pairwise(seen):
        if after.seq <= before.seq:
            raise BrokenPromise(f"{name} saw revision {after.seq} after {before.seq}")
    for one in seen:
        if acked.get(one.seq, one.data) != one.data:
            raise BrokenPromise(f"{name} saw {one.data!r} as {one.seq}, acked: {acked[one.seq]!r}")
