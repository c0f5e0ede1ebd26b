"""Other ways to read the stream of the publishers: mirrors, a push consumer, scans.

Owns: their clients, and what each of them received.
May not touch: the stream itself.
Checks: a mirror, in this cluster or in another one, holds what the stream holds; the push consumer
gets every message at least once, with its content; a scan holds every message from the first to
one that is not before the last one that was acknowledged when it began."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from nats.js.api import AckPolicy, ConsumerConfig, ExternalStream, StreamSource

from broker.client import DataLost, NoServer, PlanRefused, ScanFailed, scan_messages
from chaos.campaign.work.campaign_work import (
    ANSWER_WITHIN_S,
    NO_ANSWER,
    CampaignWork,
    create_stream,
    last_sequence,
    stored_rows,
)
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.journal import Result
from chaos.workload import connect

MIRROR = "CHAOS_MIRROR"
HOME = "home"  # the name of the first cluster among the remotes of the second one
PUSHED, PUSH_SUBJECT = "pushed", "chaos.pushed"
CATCH_UP_WITHIN_S = 120.0
NO_TABLE = (ScanFailed, NoServer, PlanRefused, OSError)
SCAN_EVERY_S = 2.0
LOOK_EVERY_S = 1.0
SCAN_LAST = 5_000  # newest messages that are scanned: a scan of all would take longer and longer
PUSH_ACK_WAIT_S = 5


@dataclass(slots=True)
class MirrorCopy(CampaignWork):
    """The mirror works by itself; the check waits until it has everything."""

    origin: str
    name: ClassVar[str] = "mirror"

    @property
    def streams(self) -> Sequence[str]:
        return (MIRROR,)

    async def create(self) -> None:
        source = StreamSource(name=self.origin)
        await create_stream(self.urls, name=MIRROR, mirror=source, num_replicas=self.replicas)

    async def run(self) -> None:
        """Nothing to do."""

    async def check(self) -> None:
        await check_mirror(self, self.origin, self.urls)


@dataclass(slots=True)
class StandbyMirror(CampaignWork):
    """The same in a second cluster, which is hit by faults of its own."""

    origin: str
    standby: Sequence[str]  # its addresses
    name: ClassVar[str] = "mirror in another cluster"

    async def create(self) -> None:
        there = ExternalStream(api=f"$JS.{HOME}.API", deliver="")
        await create_stream(
            self.standby, name=MIRROR, num_replicas=len(self.standby),
            mirror=StreamSource(name=self.origin, external=there),
        )  # fmt: skip

    async def run(self) -> None:
        """Look how far it is, for the journal."""
        dice = random.Random(0)

        async def step(client: Any) -> None:
            operation = self.journal.invoke("standby", "look", stream=MIRROR)
            try:
                info = await client.jetstream(timeout=ANSWER_WITHIN_S).stream_info(MIRROR)
            except NO_ANSWER:
                return
            self.journal.ok(operation, last=info.state.last_seq)

        await self._again_and_again(step, dice, every_s=LOOK_EVERY_S, urls=self.standby)

    async def check(self) -> None:
        await check_mirror(self, self.origin, self.standby)


async def check_mirror(work: CampaignWork, stream: str, urls: Sequence[str]) -> None:
    """`urls`: of the cluster that has the mirror. Raises BrokenPromise."""
    origin = await stored_rows(work.urls, stream)
    deadline = time.monotonic() + CATCH_UP_WITHIN_S
    while True:
        copy = await stored_rows(urls, MIRROR)
        if len(copy) >= len(origin) or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.2)
    for one, other in zip(origin, copy, strict=False):
        if one != other:
            raise BrokenPromise(f"the {work.name} has {_told(other)} in place of {_told(one)}")
    if len(copy) != len(origin):
        raise BrokenPromise(f"the {work.name} has {len(copy):,} messages of {len(origin):,}")


def _told(row: Any) -> str:
    return f"{bytes(row.data)[:24]!r} at {row.seq}"


@dataclass(slots=True)
class PushReader(CampaignWork):
    """A durable push consumer with explicit acks."""

    origin: str
    received: dict[int, bytes] = field(default_factory=dict)
    changed: list[int] = field(default_factory=list)
    name: ClassVar[str] = "push consumer"

    async def create(self) -> None:
        client = await connect(self.urls)
        try:
            await client.jetstream(timeout=30).add_consumer(
                self.origin,
                ConsumerConfig(
                    durable_name=PUSHED, deliver_subject=PUSH_SUBJECT, num_replicas=self.replicas,
                    ack_policy=AckPolicy.EXPLICIT, ack_wait=PUSH_ACK_WAIT_S, max_ack_pending=5000,
                ),
            )  # fmt: skip
        finally:
            await client.close()

    async def run(self) -> None:
        client = await connect(self.urls)

        async def take(message: Any) -> None:
            seq = message.metadata.sequence.stream
            if self.received.setdefault(seq, message.data) != message.data:
                self.changed.append(seq)
            with contextlib.suppress(*NO_ANSWER):
                await message.ack()

        try:
            await client.subscribe(PUSH_SUBJECT, cb=take)
            while not self.stopping:  # noqa: ASYNC110 - a flag, as in all workloads
                await asyncio.sleep(0.1)
            await self._catch_up()
        finally:
            await client.close()

    async def _catch_up(self) -> None:
        """Until it has everything, which the stream may have to be asked for more than once."""
        last, deadline = None, time.monotonic() + CATCH_UP_WITHIN_S
        while time.monotonic() < deadline:
            if last is None:
                with contextlib.suppress(*NO_ANSWER):
                    last = await last_sequence(self.urls, self.origin)
            elif len(self.received) >= last:
                return
            await asyncio.sleep(0.1)

    async def check(self) -> None:
        rows = {row.seq: row.data for row in await stored_rows(self.urls, self.origin)}
        lost = [seq for seq in rows if seq not in self.received]
        wrong = [seq for seq, data in self.received.items() if rows.get(seq) != data]
        for what, found in (("not pushed", lost), ("pushed with another content", wrong),
                            ("pushed with two contents", self.changed)):  # fmt: skip
            if found:
                raise BrokenPromise(f"{len(found):,} messages {what}: {found[:5]}")


@dataclass(slots=True)
class TableScans(CampaignWork):
    """Bulk reads, as Spark does them: planned by a leader, served by followers."""

    origin: str
    last_acked: Callable[[], int]  # the highest sequence of an ack so far
    name: ClassVar[str] = "scans"

    async def run(self) -> None:
        servers = ",".join(self.urls)
        while not self.stopping:
            acked = self.last_acked()
            first = max(acked - SCAN_LAST, 1)
            operation = self.journal.invoke("scans", "scan", first=first, acked=acked)
            try:
                rows = await asyncio.to_thread(self._rows, servers, first)
            except DataLost as lost:  # nothing is ever removed
                self.journal.failed(operation, lost=str(lost))
            except NO_TABLE:
                pass  # unknown
            else:
                self.journal.ok(operation, rows=rows)
            await asyncio.sleep(SCAN_EVERY_S)

    def _rows(self, servers: str, first: int) -> dict[int, bytes]:
        return dict(scan_messages(self.origin, servers=servers, first=first))

    async def check(self) -> None:
        rows = {row.seq: row.data for row in await stored_rows(self.urls, self.origin)}
        for one in self.journal.operations:
            if one.result is Result.FAILED:
                raise BrokenPromise(f"a scan was told that messages are lost: {one.answer['lost']}")
            if one.result is Result.UNKNOWN:
                continue
            found, first = one.answer["rows"], one.fields["first"]
            wanted = max(one.fields["acked"], first - 1)
            last = max(found, default=first - 1)
            if last < wanted or list(found) != list(range(first, last + 1)):
                raise BrokenPromise(
                    f"a scan from {first} found {len(found):,} messages up to {last}; {wanted} was "
                    "acknowledged before it began"
                )
            wrong = [seq for seq, data in found.items() if data != rows.get(seq)]
            if wrong:
                raise BrokenPromise(f"a scan found other contents than are stored: {wrong[:5]}")
