"""What every workload of a campaign has: a journal, a beginning, a run, a check.

Owns: the base class, and what workloads share.
May not touch: the servers; workloads are ordinary clients.
Every operation is journaled when it is invoked, and then as ok, as failed for certain, or not at
all: without an answer it is unknown whether it was done."""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import nats.errors
import nats.js.errors
from nats.js.api import StreamConfig

from chaos.sim.promises.journal import Journal, Operation
from chaos.sim.promises.stored import StoredRow
from chaos.workload import connect

# What killed nodes and cut links cause: no answer.
NO_ANSWER = (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError)
ANSWER_WITHIN_S = 5.0
READ_WITHIN_S = 60.0
DUPLICATE_WINDOW_S = 4 * 3600  # longer than any run: an id may be repeated to its end


class RealTime:
    """The clock of the journal."""

    @property
    def now_ns(self) -> int:
        return time.monotonic_ns()


def new_journal() -> Journal:
    return Journal(RealTime())


@dataclass(slots=True)
class CampaignWork(ABC):
    """`run` until `stopping`; then `check` against what is stored."""

    urls: Sequence[str]
    replicas: int
    journal: Journal = field(default_factory=new_journal, kw_only=True)
    stopping: bool = field(default=False, kw_only=True)
    name: ClassVar[str]

    @property
    def streams(self) -> Sequence[str]:
        """Those that it creates."""
        return ()

    async def create(self) -> None:  # noqa: B027 - most need nothing
        """What it needs before the run."""

    @abstractmethod
    async def run(self) -> None: ...

    @abstractmethod
    async def check(self) -> None:
        """Raises BrokenPromise."""

    async def _again_and_again(
        self, step: Callable[[Any], Awaitable[None]], dice: random.Random, *, every_s: float,
        urls: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """One step after the other until `stopping`, every `every_s` on average, with a client of
        its own. Nothing is asked while that is not connected."""
        client = await connect(urls or self.urls)
        try:
            while not self.stopping:
                if client.is_connected:
                    await step(client)
                await asyncio.sleep(dice.uniform(0, 2 * every_s))
        finally:
            await client.close()


async def create_stream(urls: Sequence[str], **config: Any) -> None:
    client = await connect(urls)
    try:
        await client.jetstream(timeout=30).add_stream(StreamConfig(**config))
    finally:
        await client.close()


async def publish(
    client: Any, journal: Journal, operation: Operation, *, subject: str, data: bytes,
    headers: dict[str, str],
) -> None:  # fmt: skip
    """Journal the answer. A refusal means that it was not stored."""
    try:
        ack = await client.jetstream(timeout=ANSWER_WITHIN_S).publish(
            subject, data, headers=headers, timeout=ANSWER_WITHIN_S
        )
    except nats.js.errors.APIError as refused:
        journal.failed(operation, code=refused.err_code)
    except NO_ANSWER:
        return
    else:
        journal.ok(operation, seq=ack.seq)


async def last_sequence(urls: Sequence[str], stream: str) -> int:
    """Raises one of NO_ANSWER."""
    client = await connect(urls)
    try:
        info = await client.jetstream(timeout=READ_WITHIN_S).stream_info(stream)
        return int(info.state.last_seq)
    finally:
        await client.close()


async def stored_rows(urls: Sequence[str], stream: str) -> list[StoredRow]:
    """Everything in a stream, through an ordered consumer."""
    client = await connect(urls)
    try:
        js = client.jetstream(timeout=READ_WITHIN_S)
        last = (await js.stream_info(stream)).state.last_seq
        found: list[StoredRow] = []
        if not last:
            return found
        subscription = await js.subscribe(
            ">", stream=stream, ordered_consumer=True, pending_msgs_limit=-1,
            pending_bytes_limit=-1,
        )  # fmt: skip
        while not found or found[-1].seq < last:
            message = await subscription.next_msg(timeout=READ_WITHIN_S)
            seq = message.metadata.sequence.stream
            found.append(StoredRow(seq, message.subject.encode(), bytes(message.data)))
        return found
    finally:
        await client.close()
