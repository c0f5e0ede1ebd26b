"""Publishes the orders at an even pace, each until it is acknowledged.

Owns: the connection, and how many orders were acknowledged in each second.
May not touch: Spark, faults."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import nats
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import StreamConfig

from examples.orders.orders import PlannedOrder

STREAMS = {"ORDERS": "orders.*", "SUMS": "sums.*", "DEAD": "dead.>"}
UNACKED_MAX = 64


class OrderPublisher(threading.Thread):
    """Runs beside Spark, which blocks the main thread."""

    def __init__(self, urls: list[str], planned: list[PlannedOrder], seconds: float) -> None:
        super().__init__(name="publisher", daemon=True)
        self.acked: Counter[int] = Counter()  # by second since the start
        self.resent = 0
        self.failure: BaseException | None = None
        self._urls = urls
        self._planned = planned
        self._seconds = seconds

    def run(self) -> None:
        try:
            asyncio.run(self._publish_all())
        except Exception as failure:  # noqa: BLE001 - told by the main thread
            self.failure = failure

    @property
    def planned(self) -> int:
        return len(self._planned)

    @property
    def done(self) -> int:
        return self.acked.total()

    async def _publish_all(self) -> None:
        client = await nats.connect(self._urls, max_reconnect_attempts=-1, error_cb=_lost)
        try:
            js = client.jetstream(timeout=2)
            begin = time.monotonic()
            free = asyncio.Semaphore(UNACKED_MAX)
            async with asyncio.TaskGroup() as tasks:
                for order in self._planned:
                    due = begin + self._seconds * order.number / len(self._planned)
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                    await free.acquire()
                    tasks.create_task(self._publish(js, order, begin, free))
        finally:
            await client.close()

    async def _publish(
        self, js: JetStreamContext, order: PlannedOrder, begin: float, free: asyncio.Semaphore
    ) -> None:
        """The id makes it safe to repeat a publish whose answer was lost with its node."""
        headers = {"Nats-Msg-Id": str(order.number)}
        try:
            while True:
                try:
                    await js.publish(order.subject, order.data, headers=headers)
                except (NatsError, TimeoutError):
                    self.resent += 1
                else:
                    self.acked[int(time.monotonic() - begin)] += 1
                    return
        finally:
            free.release()


async def _lost(problem: Exception) -> None:
    """The client connects to another node by itself; without this it logs a traceback."""
    print(f"the publisher lost its connection: {problem or type(problem).__name__}")


async def create_streams(urls: list[str]) -> None:
    client = await nats.connect(urls)
    try:
        js = client.jetstream(timeout=10)
        for name, subject in STREAMS.items():
            await js.add_stream(StreamConfig(name=name, subjects=[subject], num_replicas=3))
    finally:
        await client.close()


async def leader_of(urls: list[str], stream: str) -> str:
    client = await nats.connect(urls)
    try:
        info = await client.jetstream(timeout=10).stream_info(stream)
        assert info.cluster is not None
        return str(info.cluster.leader)
    finally:
        await client.close()
