"""A run against a real cluster: start it, put it to work, hurt it by plan, judge what is left.

Owns: the order of the steps, and that everything is stopped and removed at the end.
May not touch: processes other than those it started.
Workloads: acked publishers that retry with their message id, an ordered reader, a durable worker
with confirmed acks, and registers with compare and set."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
from nats.js.api import StreamConfig

from broker.local import LocalCluster, LocalNode, NodeFailed, our_command
from chaos.campaign import network
from chaos.campaign.faults import FaultInjector
from chaos.campaign.network import Namespaces
from chaos.campaign.plan import KINDS, Needs, draw
from chaos.campaign.record import CampaignRecord, Injected, Seen
from chaos.campaign.registers import Registers
from chaos.checker import Verdict, check, check_readers
from chaos.history import History
from chaos.readers import OrderedReader, Worker
from chaos.scenarios import STREAM, SUBJECT, Run, client_of, read_back
from chaos.sim.promises.broken import BrokenPromise
from chaos.workload import Workload

LOOK_EVERY_S = 1.0
CATCH_UP_WITHIN_S = 120.0
RETRY_FOR_S = 180.0
DUPLICATE_WINDOW_S = 600  # longer than RETRY_FOR_S, or a retry would be stored again
STORY_LINES = 40
CLIENT_PORT, HTTP_PORT, ROUTE_PORT = 4222, 8222, 6222  # every namespace has its own


@dataclass(frozen=True, slots=True)
class CampaignSettings:
    kinds: tuple[str, ...]  # of faults
    seconds: float = 60.0
    nodes: int = 3
    seed: int = 0
    rate: int = 200
    environment: dict[str, str] = field(default_factory=dict)  # of the nodes


async def run_campaign(settings: CampaignSettings, say: Callable[[str], None]) -> CampaignRecord:
    """Run and judge. Raises NodeFailed if the cluster cannot be started."""
    usable, not_tried = _usable(settings.kinds)
    if not usable:
        raise NodeFailed("none of these faults can be tried here: " + "; ".join(not_tried))
    with contextlib.ExitStack() as cleanup:
        place = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        spaces = None
        if network.missing() is None:
            spaces = Namespaces(settings.nodes)
            spaces.make()
            cleanup.callback(spaces.remove)
        cluster = _cluster(place, settings, spaces)
        cleanup.callback(cluster.stop)
        where = "in namespaces" if spaces is not None else "on this host"
        say(f"starting {settings.nodes} nodes {where}, seed {settings.seed}")
        await asyncio.to_thread(cluster.start)
        run = Campaign(settings, cluster, spaces, say)
        record = await run.run(usable)
        record.not_tried = not_tried
        return record


def _usable(kinds: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The kinds that can be tried here, and why the others cannot."""
    reason = network.missing()
    usable, not_tried = [], []
    for name in kinds:
        if reason is not None and KINDS[name].needs is Needs.NETWORK:
            not_tried.append(f"{name}: {reason}")
        else:
            usable.append(name)
    return usable, not_tried


def _cluster(place: Path, settings: CampaignSettings, spaces: Namespaces | None) -> LocalCluster:
    cluster = LocalCluster(place, size=settings.nodes, name="chaos")
    if spaces is None:
        cluster.prepare()
    else:
        routes = [f"{host}:{ROUTE_PORT}" for host in spaces.hosts]
        for number, host in enumerate(spaces.hosts):
            name = f"chaos-{number + 1}"
            command = [*spaces.prefix(number), *our_command()]
            node = LocalNode(
                name, place / name, CLIENT_PORT, HTTP_PORT, ROUTE_PORT, command, host=host
            )
            node.write_config(cluster="chaos", routes=routes)
            cluster.nodes.append(node)
    for node in cluster.nodes:
        node.environment.update(settings.environment)
    return cluster


class Campaign:
    """One run of a cluster that is up."""

    def __init__(
        self,
        settings: CampaignSettings,
        cluster: LocalCluster,
        spaces: Namespaces | None,
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._say = say
        self._run = Run(cluster, History(), say, 0.0)
        self._replicas = min(settings.nodes, 3 if settings.nodes < 5 else 5)
        self._last_state: dict[str, str] = {}
        self._faults = FaultInjector(cluster, spaces, self._leader_name, say)
        self._injected: list[Injected] = []
        self._seen: list[Seen] = []
        self._looking = True

    async def run(self, kinds: list[str]) -> CampaignRecord:
        settings, urls = self._settings, self._cluster.urls
        await self._create()
        ordered = OrderedReader(urls, STREAM)
        worker = Worker(urls, STREAM, self._replicas)
        await worker.create()
        registers = Registers(urls, self._replicas, settings.seed)
        await registers.create()
        workload = Workload(
            [urls, urls], SUBJECT, settings.rate, self._run.history,
            timeout_s=5.0, retry_for_s=RETRY_FOR_S,
        )  # fmt: skip
        async with asyncio.TaskGroup() as tasks:
            for work in (ordered.run(), worker.run(), registers.run(), self._look()):
                tasks.create_task(work)
            publishing = tasks.create_task(workload.run())
            try:
                await self._inject_all(kinds)
            finally:
                workload.stop()
                registers.stopping = True
            await publishing
            await self._caught_up(ordered, worker)
            ordered.stopping = worker.stopping = True
            self._looking = False
        return await self._judged(ordered, worker, registers)

    async def _create(self) -> None:
        async with client_of(self._cluster.nodes[0]) as client:
            await client.jetstream(timeout=30).add_stream(
                StreamConfig(
                    name=STREAM, subjects=[SUBJECT], num_replicas=self._replicas,
                    duplicate_window=DUPLICATE_WINDOW_S,
                )
            )  # fmt: skip

    async def _inject_all(self, kinds: list[str]) -> None:
        settings = self._settings
        plan = draw(settings.seed, nodes=settings.nodes, kinds=kinds, seconds=settings.seconds)
        for fault in plan:
            await asyncio.sleep(fault.wait_s)
            self._say(f"fault {fault.number} of {len(plan)}")
            one = Injected(fault.kind.name, fault.kind.text, [], time.monotonic_ns())
            self._injected.append(one)
            try:
                one.nodes = await self._faults.inject(fault)
            except (NodeFailed, TimeoutError) as error:
                one.failed = str(error)
                self._say(f"the cluster did not recover: {error}")
                return
            one.end_ns = time.monotonic_ns()
        await asyncio.sleep(2.0)

    async def _leader_name(self) -> str:
        return (await self._run.leader()).name

    async def _look(self) -> None:
        """Sample what every node is, for the lanes of the report."""
        while self._looking:
            states = await asyncio.to_thread(self._states)
            now = time.monotonic_ns()
            for node, state in states.items():
                if self._last_state.get(node) != state:
                    self._last_state[node] = state
                    self._seen.append(Seen(now, node, state))
            await asyncio.sleep(LOOK_EVERY_S)

    def _states(self) -> dict[str, str]:
        return {node.name: _state(node) for node in self._cluster.nodes}

    async def _caught_up(self, ordered: OrderedReader, worker: Worker) -> None:
        """Wait, up to a limit; the checker reports what the readers lack after that."""
        with contextlib.suppress(nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError):
            async with client_of(self._cluster.nodes[0]) as client:
                info = await client.jetstream(timeout=60).stream_info(STREAM)
            last, deadline = info.state.last_seq, time.monotonic() + CATCH_UP_WITHIN_S
            while time.monotonic() < deadline:
                if ordered.last >= last and len(worker.received) >= last:
                    return
                await asyncio.sleep(0.1)

    async def _judged(
        self, ordered: OrderedReader, worker: Worker, registers: Registers
    ) -> CampaignRecord:
        history, story = self._run.history, []
        readings = await read_back(self._run)
        verdict = check(history, readings, gapless=True)
        check_readers(
            verdict, next(iter(readings.values())), ordered=ordered.received, worker=worker
        )
        try:
            await registers.check()
        except BrokenPromise as broken:
            verdict.anomalies["registers are not linearizable"] = [str(broken)]
            story = [str(one) for one in registers.journal.operations[-STORY_LINES:]]
        for one in self._injected:
            if one.failed:
                verdict.anomalies.setdefault("did not recover", []).append(one.failed)
        return self._record(verdict, story, registers)

    def _record(self, verdict: Verdict, story: list[str], registers: Registers) -> CampaignRecord:
        settings = self._settings
        names = "all" if len(settings.kinds) == len(KINDS) else settings.kinds[0]
        minutes = settings.seconds / 60
        command = (
            f"jetraft chaos run {names} --minutes {minutes:g} --seed {settings.seed} "
            f"--nodes {settings.nodes} --rate {settings.rate}"
        )
        facts = [("operations on registers", f"{len(registers.journal.operations):,}")]
        return CampaignRecord(
            f"JetRaft under faults: {names}", command, settings.seed,
            [node.name for node in self._cluster.nodes], self._run.history, verdict,
            faults=self._injected, seen=self._seen, story=story, facts=facts,
        )  # fmt: skip


def _state(node: LocalNode) -> str:
    """leader (of the stream), follower, unhealthy or down."""
    if node.process is None:
        return "down"
    with contextlib.suppress(OSError, ValueError, KeyError):
        if node.http("/healthz", timeout_s=0.5).get("status") != "ok":
            return "unhealthy"
        accounts: Any = node.http("/jsz?streams=1", timeout_s=0.5).get("account_details", [])
        streams = [one for account in accounts for one in account["stream_detail"]]
        leads = any(one["name"] == STREAM and one.get("leads") for one in streams)
        return "leader" if leads else "follower"
    return "unhealthy"


def random_seed() -> int:
    return random.randrange(10**6)
