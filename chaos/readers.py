"""Consumers that read while nodes are killed, and record what they receive.

Owns: the connections of two readers and what each of them received.
May not touch: the servers; they are ordinary clients (nats-py, unchanged).
The ordered reader does what ordered consumers of client libraries do: it sends no acks, and when a
delivery is missing it creates a new consumer after the last message it has. The worker is durable
and confirms every ack. ACK_WAIT_S is long compared with a fetch: a delivery that arrives half of it
after the confirmation of its ack was not in flight by then."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import nats.errors
import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from chaos.workload import connect

BATCH = 200
FETCH_S = 1.0
CREATE_WITHIN_S = 5.0
ACK_WAIT_S = 10
WORKER = "worker"


@contextlib.contextmanager
def tolerated() -> Iterator[None]:
    """Ignore errors that killed nodes cause: the reader retries, and the checker compares."""
    with contextlib.suppress(
        nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError, asyncio.TimeoutError
    ):
        yield


@dataclass(slots=True)
class OrderedReader:
    """Reads the stream from its first message, each message once, in order."""

    servers: Sequence[str]
    stream: str
    received: list[tuple[int, str]] = field(default_factory=list)
    consumers: int = 0  # how many consumers it has created
    stopping: bool = False  # a flag, because the client library may swallow a cancellation
    _delivered: int = 0  # consumer sequence of the last message taken

    @property
    def last(self) -> int:
        return self.received[-1][0] if self.received else 0

    async def run(self) -> None:
        """Read until `stopping` is set."""
        connection = await connect(self.servers)
        try:
            while not self.stopping:
                with tolerated():
                    await self._read(connection)
                await asyncio.sleep(0.05)
        finally:
            await connection.close()

    async def _read(self, connection: Any) -> None:
        """Read from one consumer until a delivery is missing or it no longer answers."""
        context = connection.jetstream(timeout=CREATE_WITHIN_S)
        info = await context.add_consumer(
            self.stream,
            ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self.last + 1,
                ack_policy=AckPolicy.NONE,
                inactive_threshold=30,
                mem_storage=True,
                num_replicas=1,
            ),
        )
        self.consumers += 1
        self._delivered = 0
        subscription = await context.pull_subscribe_bind(info.name, self.stream)
        while not self.stopping:
            try:
                batch = await subscription.fetch(BATCH, timeout=FETCH_S)
            except TimeoutError:
                # Nothing new, or the consumer no longer exists: its info shows which.
                await subscription.consumer_info()
                continue
            for message in batch:
                if not self._take(message):
                    return

    def _take(self, message: Any) -> bool:
        """False if a delivery before this one is missing."""
        sequence = message.metadata.sequence
        if sequence.consumer != self._delivered + 1:
            return False
        self._delivered = sequence.consumer
        self.received.append((sequence.stream, message.data.decode()))
        return True


@dataclass(slots=True)
class Worker:
    """A durable pull consumer: gets every message, and none after its ack was confirmed."""

    servers: Sequence[str]
    stream: str
    replicas: int
    received: dict[int, str] = field(default_factory=dict)
    deliveries: int = 0
    stopping: bool = False
    # Sequence -> when its ack was confirmed; and deliveries that arrived too long after that.
    confirmed_ns: dict[int, int] = field(default_factory=dict)
    after_confirmation: list[int] = field(default_factory=list)
    changed_ids: list[int] = field(default_factory=list)

    async def create(self) -> None:
        connection = await connect(self.servers)
        try:
            await connection.jetstream().add_consumer(
                self.stream,
                ConsumerConfig(
                    durable_name=WORKER, ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_S,
                    max_ack_pending=20_000, num_replicas=self.replicas,
                ),
            )  # fmt: skip
        finally:
            await connection.close()

    async def run(self) -> None:
        """Read until `stopping` is set."""
        connection = await connect(self.servers)
        try:
            subscription = await connection.jetstream().pull_subscribe_bind(WORKER, self.stream)
            while not self.stopping:
                with tolerated():
                    await self._work(subscription)
        finally:
            await connection.close()

    async def _work(self, subscription: Any) -> None:
        batch = await subscription.fetch(BATCH, timeout=FETCH_S)
        async with asyncio.TaskGroup() as acks:
            for message in batch:
                self.delivered(message.metadata.sequence.stream, message.data.decode())
                acks.create_task(self._confirm(message))

    def delivered(self, seq: int, ident: str) -> None:
        self.deliveries += 1
        if self.received.setdefault(seq, ident) != ident:
            self.changed_ids.append(seq)
        confirmed = self.confirmed_ns.get(seq)
        if confirmed is not None and time.monotonic_ns() - confirmed > ACK_WAIT_S * 10**9 // 2:
            self.after_confirmation.append(seq)

    async def _confirm(self, message: Any) -> None:
        with tolerated():
            await message.ack_sync(timeout=FETCH_S)
            self.confirmed_ns.setdefault(message.metadata.sequence.stream, time.monotonic_ns())
