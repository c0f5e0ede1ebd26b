"""A run against a real cluster: put it to work, hurt it by plan, judge what is left.

Owns: the order of the steps, and that everything is stopped and removed at the end.
May not touch: processes other than those it started.
Workloads: acked publishers that retry with their message id, an ordered reader, a durable worker
with confirmed acks, and those of chaos/campaign/work."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from nats.js.api import StreamConfig

from broker.client import DataLost, scan_messages
from broker.local import NodeFailed
from chaos.campaign.foreign_target import ForeignSettings, ForeignTarget, foreign_usable
from chaos.campaign.local_target import LocalSettings, LocalTarget, usable
from chaos.campaign.machines.network import NetworkFailed
from chaos.campaign.plan import KINDS, draw
from chaos.campaign.record import CampaignRecord, Injected, Seen
from chaos.campaign.story import around
from chaos.campaign.target import NO_ANSWER, Target, told
from chaos.campaign.work.batches import IDS, Batches, RepeatedIds
from chaos.campaign.work.campaign_work import CampaignWork, last_sequence
from chaos.campaign.work.copies import (
    NO_TABLE,
    MirrorCopy,
    PushReader,
    StandbyMirror,
    TableScans,
)
from chaos.campaign.work.lifecycles import LifeCycles
from chaos.campaign.work.objects import Objects
from chaos.campaign.work.registers import STREAM as REGISTERS
from chaos.campaign.work.registers import Registers
from chaos.campaign.work.spark_reads import SparkReads
from chaos.campaign.work.spark_reads import missing as no_spark
from chaos.checker import Stored, check, check_readers
from chaos.history import History
from chaos.readers import OrderedReader, Worker
from chaos.sim.promises.broken import BrokenPromise
from chaos.workload import Workload, connect, drain

STREAM, SUBJECT = "CHAOS", "chaos.load"
# Streams whose leaders are hit, by the workload that uses them.
LED = {"": STREAM, Registers.name: REGISTERS, RepeatedIds.name: IDS}
UNREADABLE = (*NO_ANSWER, *NO_TABLE, DataLost)
LOOK_EVERY_S = 1.0
CATCH_UP_WITHIN_S = 120.0
RETRY_FOR_S = 180.0
DUPLICATE_WINDOW_S = 600  # longer than RETRY_FOR_S, or a retry would be stored again


@dataclass(frozen=True, slots=True)
class CampaignSettings:
    kinds: tuple[str, ...]  # of faults
    seconds: float = 60.0
    seed: int = 0
    rate: int = 200
    local: LocalSettings = LocalSettings()  # noqa: RUF009 - frozen
    foreign: ForeignSettings | None = None  # in place of a cluster of its own
    replicas: int = 3
    # What is done besides publishing, reading and working: names of WORKS; None: all.
    works: tuple[str, ...] | None = None
    pause_s: float = 4.0  # between two faults, on average
    # After this time no further fault begins: a slow machine does less of the plan.
    limit_s: float | None = None
    command: str = ""  # that repeats it

    @property
    def led(self) -> list[str]:
        wanted = self.works
        return [stream for work, stream in LED.items() if wanted is None or work in ("", *wanted)]


Say = Callable[[str], None]


async def run_campaign(settings: CampaignSettings, say: Say) -> CampaignRecord:
    """Run and judge. Raises NodeFailed if the cluster cannot be started or reached."""
    if settings.foreign is not None:
        kinds, not_tried = foreign_usable(settings.kinds, settings.foreign)
    else:
        kinds, not_tried = usable(settings.kinds, settings.local)
    if not kinds:
        raise NodeFailed("none of these faults can be tried here: " + "; ".join(not_tried))
    if settings.foreign is not None:
        record = await _against(settings, settings.foreign, kinds, say)
    else:
        record = await _started(settings, kinds, say)
    ours = settings.foreign is None and settings.local.peer is None
    if ours and settings.works is None and (reason := no_spark()):
        not_tried.append(f"{SparkReads.name}: {reason}")
    record.not_tried = not_tried
    return record


async def _against(
    settings: CampaignSettings, foreign: ForeignSettings, kinds: list[str], say: Say
) -> CampaignRecord:
    target, created = ForeignTarget(foreign, settings.led), []
    try:
        await target.open()
        campaign = Campaign(settings, target, say)
        await target.free_of(campaign.streams)
        created = campaign.streams
        record = await campaign.run(kinds)
        created = campaign.streams
        return record
    finally:
        await target.close(created)


async def _started(settings: CampaignSettings, kinds: list[str], say: Say) -> CampaignRecord:
    with contextlib.ExitStack() as cleanup:
        place = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        target = LocalTarget.make(
            settings.local, place, kinds, cleanup=cleanup, streams=settings.led, say=say
        )
        await target.start()
        try:
            return await Campaign(settings, target, say).run(kinds)
        finally:
            await target.close()


class Campaign:
    """One run against a cluster that is up."""

    def __init__(self, settings: CampaignSettings, target: Target, say: Say) -> None:
        self._settings = settings
        self._target = target
        self._say = say
        self._history = History()
        self._last_state: dict[str, str] = {}
        self._injected: list[Injected] = []
        self._seen: list[Seen] = []
        self._looking = True
        self.works = self._chosen_works()

    def _chosen_works(self) -> list[CampaignWork]:
        settings, urls, replicas = self._settings, self._target.urls, self._settings.replicas
        own = self._target.own_reads
        known: list[CampaignWork] = [
            Registers(urls, replicas, settings.seed, direct_reads=own),
            RepeatedIds(urls, replicas, settings.seed),
            Batches(urls, replicas, settings.seed),
            PushReader(urls, replicas, STREAM),
            MirrorCopy(urls, replicas, STREAM),
            Objects(urls, replicas, settings.seed),
            LifeCycles(urls, replicas, settings.seed),
        ]
        if own:
            known.append(TableScans(urls, replicas, STREAM, self._last_acked))
        if own and no_spark() is None:
            known.append(SparkReads(urls, replicas, STREAM, self._last_acked))
        if there := self._target.standby_urls:
            known.append(StandbyMirror(urls, replicas, STREAM, there))
        wanted = settings.works
        return [work for work in known if wanted is None or work.name in wanted]

    @property
    def streams(self) -> list[str]:
        """All that it creates."""
        return [STREAM, *(name for work in self.works for name in work.streams)]

    def _last_acked(self) -> int:
        return self._history.highest_acked

    async def run(self, kinds: list[str]) -> CampaignRecord:
        """Raises NodeFailed before the first fault."""
        settings, urls = self._settings, self._target.urls
        ordered = OrderedReader(urls, STREAM)
        worker = Worker(urls, STREAM, settings.replicas)
        try:
            await self._create()
            await self._target.begin()
            await worker.create()
            for work in self.works:
                await work.create()
        except NO_ANSWER as error:
            raise NodeFailed(f"the streams of the test cannot be created: {told(error)}") from error
        workload = Workload(
            [urls, urls], SUBJECT, settings.rate, self._history,
            timeout_s=5.0, retry_for_s=RETRY_FOR_S,
        )  # fmt: skip
        readers = (ordered, worker)
        async with asyncio.TaskGroup() as tasks:
            try:
                for running in (ordered.run(), worker.run(), self._look()):
                    tasks.create_task(running)
                others = [tasks.create_task(work.run(), name=work.name) for work in self.works]
                publishing = tasks.create_task(workload.run())
                await self._inject_all(kinds)
                workload.stop()
                self._say("waiting for the clients")
                await publishing  # before readers ask how much there is to read
                self._stop(self.works)
                await asyncio.gather(*others)
                await self._caught_up(ordered, worker)
            finally:
                # The client library swallows cancellations: after a failure, too, every loop ends
                # by itself.
                workload.abandon()
                self._stop((*self.works, *readers))
                self._looking = False
        return await self._judged(ordered, worker)

    @staticmethod
    def _stop(clients: Iterable[CampaignWork | OrderedReader | Worker]) -> None:
        for client in clients:
            client.stopping = True

    async def _create(self) -> None:
        client = await connect(self._target.urls)
        try:
            await client.jetstream(timeout=30).add_stream(
                StreamConfig(
                    name=STREAM, subjects=[SUBJECT], num_replicas=self._settings.replicas,
                    duplicate_window=DUPLICATE_WINDOW_S,
                )
            )  # fmt: skip
        finally:
            await client.close()

    async def _inject_all(self, kinds: list[str]) -> None:
        settings = self._settings
        nodes = len(self._target.names)
        plan = draw(
            settings.seed, nodes=nodes, kinds=kinds, seconds=settings.seconds,
            pause_s=settings.pause_s,
        )  # fmt: skip
        began = time.monotonic()
        for fault in plan:
            await asyncio.sleep(fault.wait_s)
            over = settings.limit_s is not None and time.monotonic() - began > settings.limit_s
            if over and self._injected:
                self._say(f"time is up: {len(self._injected)} of {len(plan)} faults were injected")
                break
            self._say(f"fault {fault.number} of {len(plan)}, {self._progress()}")
            one = Injected(fault.kind.name, fault.kind.text, [], time.monotonic_ns())
            self._injected.append(one)
            try:
                one.nodes = await self._target.inject(fault)
            except (NodeFailed, NetworkFailed, OSError) as error:
                one.failed = str(error) or type(error).__name__
                self._say(f"the cluster did not recover: {error}")
                return
            one.end_ns = time.monotonic_ns()
        await asyncio.sleep(2.0)

    def _progress(self) -> str:
        acked, sent = self._history.acks, len(self._history.publishes)
        operations = sum(len(work.journal.operations) for work in self.works)
        return f"{acked:,} of {sent:,} publishes acked, {operations:,} other operations"

    async def _look(self) -> None:
        """Sample what every node is, for the lanes of the report."""
        while self._looking:
            states = await self._target.states()
            now = time.monotonic_ns()
            for node, state in states.items():
                if self._last_state.get(node) != state:
                    self._last_state[node] = state
                    self._seen.append(Seen(now, node, state))
            await asyncio.sleep(LOOK_EVERY_S)

    async def _caught_up(self, ordered: OrderedReader, worker: Worker) -> None:
        """Wait, up to a limit; the checker reports what the readers lack after that."""
        last, deadline = None, time.monotonic() + CATCH_UP_WITHIN_S
        while time.monotonic() < deadline:
            if last is None:
                with contextlib.suppress(*NO_ANSWER):
                    last = await last_sequence(self._target.urls, STREAM)
            elif ordered.last >= last and len(worker.received) >= last:
                return
            await asyncio.sleep(0.1)

    async def _read_back(self) -> dict[str, Stored]:
        last = await last_sequence(self._target.urls, STREAM)
        readings: dict[str, Stored] = {
            "a consumer": await drain(self._target.urls, STREAM, last=last)
        }
        if self._every_node_stores:
            for url in self._target.urls:
                readings[url] = await asyncio.to_thread(_replica, url, last)
        return readings

    @property
    def _every_node_stores(self) -> bool:
        """And tells what it stores."""
        return self._target.own_reads and self._settings.replicas == len(self._target.urls)

    async def _different(self) -> list[str]:
        """Streams of the other workloads whose replicas differ."""
        if not self._every_node_stores:
            return []
        found = []
        client = await connect(self._target.urls)
        try:
            infos = await client.jetstream(timeout=60).streams_info()
        finally:
            await client.close()
        for info in infos:
            name, last = info.config.name, info.state.last_seq
            if name != STREAM and name in self.streams and last:
                asked = (asyncio.to_thread(_digest, url, name, last) for url in self._target.urls)
                if len(set(await asyncio.gather(*asked))) > 1:
                    found.append(name)
        return found

    async def _judged(self, ordered: OrderedReader, worker: Worker) -> CampaignRecord:
        self._say("reading everything back")
        try:
            readings = await self._read_back()
        except UNREADABLE as error:
            verdict = check(self._history, {"nobody": []})
            verdict.anomalies = {"cannot be read back": [str(error) or type(error).__name__]}
        else:
            verdict = check(self._history, readings, gapless=True)
            stored = next(iter(readings.values()))
            check_readers(verdict, stored, ordered=ordered.received, worker=worker)
        record = CampaignRecord(
            f"{self._server()} under faults", self._settings.command, self._settings.seed,
            list(self._target.names), self._history, verdict, faults=self._injected,
            seen=self._seen, facts=self._target.facts(), works=self.works,
        )  # fmt: skip
        record.story = around(record, None, " ".join(chain(*verdict.anomalies.values())))
        for work in self.works:
            try:
                await work.check()
            except BrokenPromise as broken:
                verdict.anomalies[work.name] = [str(broken)]
                record.story += around(record, work.journal, str(broken))
            except UNREADABLE as error:
                problem = f"cannot be read back: {error or type(error).__name__}"
                verdict.anomalies[work.name] = [problem]
        try:
            different = await self._different()
        except UNREADABLE as error:
            different = [str(error) or type(error).__name__]
        if different:
            verdict.anomalies.setdefault("replicas differ", []).extend(different)
        for one in self._injected:
            if one.failed:
                verdict.anomalies.setdefault("did not recover", []).append(one.failed)
        return record

    def _server(self) -> str:
        return "JetRaft" if self._target.own_reads else "nats-server"


def _replica(url: str, last: int) -> Stored:
    """The messages in the replica of this node, which may have to catch up first."""
    rows = scan_messages(STREAM, servers=url, last=last, pinned=True)
    return [(seq, data.decode()) for seq, data in rows]


def _digest(url: str, stream: str, last: int) -> bytes:
    """Of all messages in the replica of this node."""
    digest = hashlib.sha256()
    for seq, data in scan_messages(stream, servers=url, last=last, pinned=True):
        digest.update(b"%d %d " % (seq, len(data)))
        digest.update(data)
    return digest.digest()


def replicas_for(nodes: int) -> int:
    return min(nodes, 5) if nodes % 2 else min(nodes - 1, 5)


def random_seed() -> int:
    return random.randrange(10**6)


def kinds_of(scenario: str) -> tuple[str, ...]:
    """`all`, or names with commas between them. Raises KeyError with the one that is none."""
    if scenario == "all":
        return tuple(KINDS)
    return tuple(KINDS[name].name for name in scenario.split(","))
