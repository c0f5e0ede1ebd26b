"""Chaos runs against real processes: load, a fault, recovery, a verdict.

Owns: the scenarios by name and the steps of a run.
May not touch: processes and disks other than those of its own cluster.
Steps: start three nodes, create a stream, publish at a fixed rate, inject the fault a number of
times, wait for recovery, stop the load, read everything through a consumer and from each replica,
check."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
from nats.js.api import StorageType, StreamConfig

from broker.client import scan_messages
from broker.local import LocalCluster, LocalNode
from chaos import disks
from chaos.checker import Stored, Verdict, check
from chaos.history import History, Mark
from chaos.workload import Workload, connect, drain

STREAM = "CHAOS"
SUBJECT = "chaos.load"
HEAL_WITHIN_S = 60.0


@dataclass(slots=True)
class Run:
    """A run in progress: what the faults act on."""

    cluster: LocalCluster
    history: History
    say: Callable[[str], None]
    seconds: float
    scans: bool = True  # read every replica by itself; nats-server cannot do that
    disks: list[disks.LoopDisk] = field(default_factory=list)

    def mark(self, text: str) -> None:
        self.history.marks.append(Mark(time.monotonic_ns(), text))
        self.say(text)

    async def leader(self) -> LocalNode:
        """The leader of the stream, from any node that answers."""
        name = await self._ask_leader()
        return next(node for node in self.cluster.nodes if node.name == name)

    async def _ask_leader(self) -> str:
        deadline = time.monotonic() + HEAL_WITHIN_S
        while time.monotonic() < deadline:
            for node in self.cluster.nodes:
                if node.process is None:
                    continue
                with contextlib.suppress(
                    nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError
                ):
                    async with asyncio.timeout(5), client_of(node) as client:
                        info = await client.jetstream().stream_info(STREAM)
                        if info.cluster and info.cluster.leader:
                            return str(info.cluster.leader)
            await asyncio.sleep(0.1)
        raise TimeoutError(f"no leader of {STREAM} within {HEAL_WITHIN_S} s")

    async def restart(self, node: LocalNode) -> None:
        node.start()
        await asyncio.to_thread(node.wait_healthy, timeout_s=HEAL_WITHIN_S)


@contextlib.asynccontextmanager
async def client_of(node: LocalNode) -> AsyncIterator[Any]:
    client = await connect([node.url])
    try:
        yield client
    finally:
        await client.close()


Fault = Callable[[Run], Coroutine[Any, Any, None]]


async def leader_kill(run: Run) -> None:
    leader = await run.leader()
    run.mark(f"kill -9 the leader {leader.name}")
    leader.kill()
    await asyncio.sleep(run.seconds)
    run.mark(f"start {leader.name} again")
    await run.restart(leader)


async def follower_kill(run: Run) -> None:
    leader = await run.leader()
    follower = next(node for node in run.cluster.nodes if node is not leader)
    run.mark(f"kill -9 the follower {follower.name}")
    follower.kill()
    await asyncio.sleep(run.seconds)
    run.mark(f"start {follower.name} again")
    await run.restart(follower)


async def pause(run: Run) -> None:
    leader = await run.leader()
    run.mark(f"pause the leader {leader.name} for {run.seconds:.0f} s (SIGSTOP)")
    leader.pause()
    await asyncio.sleep(run.seconds)
    run.mark(f"continue {leader.name}")
    leader.resume()


async def all_kill(run: Run) -> None:
    run.mark("kill -9 all nodes")
    for node in run.cluster.nodes:
        node.kill()
    for node in run.cluster.nodes:
        node.start()
    for node in run.cluster.nodes:
        await asyncio.to_thread(node.wait_healthy, timeout_s=HEAL_WITHIN_S)
    run.mark("all nodes are back")


async def power_cut(run: Run) -> None:
    run.mark("cut the power of all nodes: writes that were not fsynced are lost")
    for disk in run.disks:
        disk.cut_power()
    for node in run.cluster.nodes:
        node.kill()
    for disk in run.disks:
        disk.unmount()
        disk.mount()
    for node in run.cluster.nodes:
        node.start()
    for node in run.cluster.nodes:
        await asyncio.to_thread(node.wait_healthy, timeout_s=HEAL_WITHIN_S)
    run.mark("power is back, all nodes are up")


SCENARIOS: dict[str, tuple[Fault, str]] = {
    "leader-kill": (leader_kill, "kill -9 the stream's leader, bring it back"),
    "follower-kill": (follower_kill, "kill -9 a follower, bring it back"),
    "pause": (pause, "SIGSTOP the leader for a while, then continue it"),
    "all-kill": (all_kill, "kill -9 all nodes at once, start them again"),
    "power-cut": (power_cut, "all nodes lose the writes that were not fsynced (needs root)"),
}


@dataclass(frozen=True, slots=True)
class Settings:
    scenario: str
    rate: int = 1000
    rounds: int = 1
    fault_seconds: float = 3.0
    between_seconds: float = 2.0
    nodes: int = 3  # of kill-rounds; the other scenarios need three
    seed: int | None = None  # of kill-rounds; None draws one and prints it
    storage: str = "file"  # of the stream
    answer_within_s: float = 10.0  # a publish without an answer counts as unknown, or is retried
    command: tuple[str, ...] | None = None  # another server, e.g. nats-server
    report: Path | None = None


async def run_scenario(settings: Settings, say: Callable[[str], None]) -> Verdict:
    """Run and check. Raises if the cluster cannot be started or does not recover."""
    fault, _ = SCENARIOS[settings.scenario]
    with contextlib.ExitStack() as cleanup:
        place = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        cluster = LocalCluster(place, name="chaos")
        if settings.command is not None:
            cluster.command = settings.command
        cluster.prepare()
        ours = settings.command is None
        run = Run(cluster, History(), say, settings.fault_seconds, scans=ours)
        if settings.scenario == "power-cut":
            _give_disks(run, place, cleanup)
        cleanup.callback(cluster.stop)
        await asyncio.to_thread(cluster.start)
        return await _run_load(settings, fault, run)


def _give_disks(run: Run, place: Path, cleanup: contextlib.ExitStack) -> None:
    for node in run.cluster.nodes:
        disk = disks.LoopDisk.create(place, f"disk-{node.name}")
        cleanup.callback(disk.remove)
        run.disks.append(disk)
        config = node.directory / "server.conf"
        text = config.read_text().replace(
            str(node.directory / "data"), str(disk.mountpoint / "data")
        )
        config.write_text(text)


async def _run_load(settings: Settings, fault: Fault, run: Run) -> Verdict:
    cluster = run.cluster
    async with client_of(cluster.nodes[0]) as client:
        await client.jetstream().add_stream(
            StreamConfig(
                name=STREAM,
                subjects=[SUBJECT],
                num_replicas=3,
                duplicate_window=120,
                storage=StorageType(settings.storage),
            )
        )
    leader = await run.leader()
    kills_all = settings.scenario in {"all-kill", "power-cut"}
    # A publisher whose own node is killed loses its connection in any case; the question is what
    # the others notice. When all nodes are killed, every client has to retry.
    pinned = [[n.url] for n in cluster.nodes if n is not leader or kills_all]
    if settings.scenario == "follower-kill" or settings.rounds > 1:
        pinned = [cluster.urls]
    workload = Workload(
        pinned,
        SUBJECT,
        settings.rate,
        run.history,
        retry_for_s=60.0 if kills_all else 0.0,
        timeout_s=settings.answer_within_s,
    )
    run.say(f"publishing {settings.rate}/s to {STREAM} (3 replicas, leader {leader.name})")
    task = asyncio.create_task(workload.run(), name="workload")
    try:
        for number in range(1, settings.rounds + 1):
            await asyncio.sleep(settings.between_seconds)
            if settings.rounds > 1:
                run.say(f"round {number} of {settings.rounds}")
            await fault(run)
        await asyncio.sleep(settings.between_seconds)
    finally:
        workload.stop()
        await task
    if settings.report is not None:
        run.history.write(settings.report)
    return check(run.history, await read_back(run))


async def read_back(run: Run) -> dict[str, Stored]:
    async with client_of(run.cluster.nodes[0]) as client:
        info = await client.jetstream().stream_info(STREAM)
    last = info.state.last_seq
    readings: dict[str, Stored] = {}
    readings["a consumer"] = await drain(run.cluster.urls, STREAM, last=last)
    if run.scans:
        for node in run.cluster.nodes:
            readings[node.name] = await asyncio.to_thread(_replica, node, last)
    return readings


def _replica(node: LocalNode, last: int) -> Stored:
    """The messages in the replica of this node, which may have to catch up first."""
    servers = f"{node.host}:{node.client_port}"
    rows = scan_messages(STREAM, servers=servers, last=last, pinned=True)
    return [(seq, data.decode()) for seq, data in rows]
