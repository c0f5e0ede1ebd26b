"""Publishers with a journal: open loop, unique ids, every answer recorded.

Owns: the connections and tasks of one workload.
May not touch: the servers; it is an ordinary client (nats-py, unchanged).
An open loop sends at a fixed rate, whether or not earlier publishes were answered: a server that
stalls gets the load it would get in production. Only when this process itself is late does it skip
sends: on a busy machine it would otherwise never catch up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import nats
import nats.errors
import nats.js.errors

from chaos.history import History, Outcome, Publish

RETRY_EVERY_S = 0.25
LATE_S = 0.1  # what was due longer ago than this is not sent
PENDING_MAX = 50_000  # unanswered publishes; the workload stops sending at this number


@dataclass(slots=True)
class Workload:
    """Publish to `subject` at `rate` per second over all connections, until stopped."""

    urls: Sequence[Sequence[str]]  # one publisher per entry; an entry lists its servers
    subject: str
    rate: int
    history: History
    timeout_s: float = 10.0
    retry_for_s: float = 0.0  # retry with the same Nats-Msg-Id for this long
    _stopping: bool = False
    _abandoned: bool = False
    _connections: list[Any] = field(default_factory=list)

    async def run(self) -> None:
        """Publish until `stop`, then wait for outstanding answers."""
        try:
            for servers in self.urls:
                self._connections.append(await connect(servers))
            async with asyncio.TaskGroup() as tasks:
                await self._publish_by_clock(tasks)
        finally:
            for connection in self._connections:
                await connection.close()

    def stop(self) -> None:
        self._stopping = True

    def abandon(self) -> None:
        """Stop, and send nothing again."""
        self._stopping = self._abandoned = True

    async def _publish_by_clock(self, tasks: asyncio.TaskGroup) -> None:
        started = time.monotonic()
        count = outstanding = 0

        def done(_: object) -> None:
            nonlocal outstanding
            outstanding -= 1

        while not self._stopping:
            now = time.monotonic()
            started = max(started, now - LATE_S - count / self.rate)
            due = int((now - started) * self.rate)
            while count < due and outstanding < PENDING_MAX:
                ident = f"{count % len(self._connections)}-{count}"
                record = Publish(ident, time.monotonic_ns())
                self.history.publishes.append(record)
                connection = self._connections[count % len(self._connections)]
                outstanding += 1
                tasks.create_task(self._publish(connection, record)).add_done_callback(done)
                count += 1
            await asyncio.sleep(0.001)

    async def _publish(self, connection: Any, record: Publish) -> None:
        stream = connection.jetstream(timeout=self.timeout_s)
        headers = {"Nats-Msg-Id": record.ident}
        deadline = time.monotonic() + self.retry_for_s
        while True:
            # Retries wait for the connection: attempts buffered meanwhile would all be sent at
            # once, as duplicates of each other.
            if not connection.is_connected and self._goes_on(deadline):
                await asyncio.sleep(RETRY_EVERY_S)
                continue
            try:
                ack = await stream.publish(
                    self.subject, record.ident.encode(), timeout=self.timeout_s, headers=headers
                )
            except nats.js.errors.APIError as refused:
                # After a timeout it stays unknown: an earlier attempt may have been stored.
                if record.attempts == 1:
                    record.outcome = Outcome.FAILED
                record.error = str(refused)
            except (nats.errors.Error, nats.js.errors.NoStreamResponseError, OSError) as problem:
                record.outcome, record.error = Outcome.UNKNOWN, type(problem).__name__
            else:
                self.history.ack(record, seq=ack.seq, duplicate=bool(ack.duplicate))
            record.done_ns = time.monotonic_ns()
            if record.outcome is Outcome.ACKED or not self._goes_on(deadline):
                return
            record.attempts += 1
            await asyncio.sleep(RETRY_EVERY_S)

    def _goes_on(self, deadline: float) -> bool:
        return not self._abandoned and time.monotonic() < deadline


async def quiet(_: Exception) -> None:
    """Connections are lost on purpose; the journal has the effect."""


async def connect(servers: Sequence[str]) -> Any:
    """A client that reconnects for the whole run."""
    return await nats.connect(
        list(servers), max_reconnect_attempts=-1, reconnect_time_wait=0.1, connect_timeout=2,
        error_cb=quiet, allow_reconnect=True, pending_size=64 << 20,
    )  # fmt: skip


async def drain(servers: Sequence[str], stream: str, *, last: int) -> list[tuple[int, str]]:
    """All stored messages in sequence order, as (sequence, id), from an ordered consumer."""
    connection = await connect(servers)
    try:
        subscription = await connection.jetstream().subscribe(
            ">", stream=stream, ordered_consumer=True, pending_msgs_limit=-1,
            pending_bytes_limit=-1,
        )  # fmt: skip
        found: list[tuple[int, str]] = []
        while not found or found[-1][0] < last:
            message = await subscription.next_msg(timeout=15)
            found.append((message.metadata.sequence.stream, message.data.decode()))
        return found
    finally:
        await connection.close()
