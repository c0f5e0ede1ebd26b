"""Kill -9 at random moments, round after round, under publishers and consumers.

Owns: the rounds (victims, moments and durations, all from one seed) and their report.
May not touch: processes other than those of its own cluster.
Steps: publishers retry unanswered publishes with the same Nats-Msg-Id; each round kills one node,
two, or all of them at a random moment and starts them again, sometimes before the victims of the
round before have recovered; then all nodes become healthy, the readers catch up, and the checker
compares."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nats.js.api import StreamConfig

from broker.local import LocalCluster, LocalNode
from chaos.checker import Verdict, check, check_readers
from chaos.history import History
from chaos.readers import OrderedReader, Worker
from chaos.scenarios import HEAL_WITHIN_S, STREAM, SUBJECT, Run, Settings, client_of, read_back
from chaos.workload import Workload

BEFORE_KILL_S = (0.0, 2.0)
DOWN_S = (0.0, 1.0)
WAIT_FOR_HEALTH = 0.7  # share of rounds that wait; the next kill comes during recovery otherwise
RETRY_FOR_S = 120.0
ANSWER_WITHIN_S = 2.0
DUPLICATE_WINDOW_S = 300  # longer than RETRY_FOR_S, or a retry would be stored again
CATCH_UP_WITHIN_S = 120.0
ROUND_AT_MOST_S = BEFORE_KILL_S[1] + DOWN_S[1] + HEAL_WITHIN_S


@dataclass(slots=True)
class KillRounds:
    """The kills of one run, and how long recovery took."""

    run: Run
    dice: random.Random
    killed: Counter[int] = field(default_factory=Counter)  # rounds by number of nodes killed
    into_recovery: int = 0
    slowest_recovery_s: float = 0.0

    async def one(self, *, wait: bool) -> None:
        nodes = self.run.cluster.nodes
        await asyncio.sleep(self.dice.uniform(*BEFORE_KILL_S))
        victims = self.victims(len(nodes))
        names = ", ".join(nodes[i].name for i in victims)
        self.run.mark(f"kill -9 {names}")
        for i in victims:
            nodes[i].kill()
        self.killed[len(victims)] += 1
        await asyncio.sleep(self.dice.uniform(*DOWN_S))
        for i in victims:
            nodes[i].start()
        if wait:
            await self.healthy()
        else:
            self.into_recovery += 1

    def victims(self, count: int) -> list[int]:
        """One node in six rounds of ten, two in two, all in two."""
        how_many = min(count, self.dice.choice([1] * 6 + [2] * 2 + [count] * 2))
        return self.dice.sample(range(count), how_many)

    async def healthy(self) -> None:
        began = time.monotonic()
        for node in self.run.cluster.nodes:
            await asyncio.to_thread(node.wait_healthy, timeout_s=HEAL_WITHIN_S)
        self.slowest_recovery_s = max(self.slowest_recovery_s, time.monotonic() - began)


@dataclass(slots=True)
class KillReport:
    """The result of a run of kill rounds."""

    seed: int
    verdict: Verdict
    rounds: KillRounds
    ordered: OrderedReader
    worker: Worker
    history: History

    @property
    def ok(self) -> bool:
        return self.verdict.ok

    def lines(self) -> list[str]:
        kinds = ", ".join(f"{count} x {size}" for size, count in sorted(self.rounds.killed.items()))
        repeated = sum(p.attempts > 1 for p in self.history.publishes)
        stored_before = sum(p.duplicate for p in self.history.publishes)
        return [
            f"seed {self.seed}: {self.rounds.killed.total()} rounds (times x nodes at once: "
            f"{kinds}), {self.rounds.into_recovery} of them did not wait for recovery; "
            f"slowest recovery {self.rounds.slowest_recovery_s:.1f} s",
            f"{repeated:,} publishes sent more than once, {stored_before:,} answered as duplicates",
            f"ordered reader: {len(self.ordered.received):,} messages with "
            f"{self.ordered.consumers} consumers; worker: {self.worker.deliveries:,} deliveries of "
            f"{len(self.worker.received):,}, {len(self.worker.confirmed_ns):,} acks confirmed",
            *self.verdict.lines(),
        ]


async def run_kill_rounds(settings: Settings, say: Callable[[str], None]) -> KillReport:
    """Run and check. Raises if the cluster cannot be started, or does not recover in time."""
    seed = settings.seed if settings.seed is not None else random.randrange(10**6)
    say(f"seed {seed}, {settings.nodes} node(s), {settings.rounds} rounds")
    with contextlib.ExitStack() as cleanup:
        place = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        cluster = LocalCluster(place, size=settings.nodes, name="chaos")
        if settings.command is not None:
            cluster.command = settings.command
        cleanup.callback(cluster.stop)
        await asyncio.to_thread(cluster.start)
        run = Run(cluster, History(), say, 0.0, scans=settings.command is None)
        async with asyncio.timeout(settings.rounds * ROUND_AT_MOST_S + 4 * CATCH_UP_WITHIN_S):
            return await _run_rounds(settings, run, seed)


async def _run_rounds(settings: Settings, run: Run, seed: int) -> KillReport:
    cluster = run.cluster
    replicas = min(settings.nodes, 3)
    async with client_of(cluster.nodes[0]) as client:
        await client.jetstream().add_stream(
            StreamConfig(
                name=STREAM, subjects=[SUBJECT], num_replicas=replicas,
                duplicate_window=DUPLICATE_WINDOW_S,
            )
        )  # fmt: skip
    ordered = OrderedReader(cluster.urls, STREAM)
    worker = Worker(cluster.urls, STREAM, replicas)
    await worker.create()
    rounds = KillRounds(run, random.Random(seed))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ordered.run(), name="ordered reader")
        tasks.create_task(worker.run(), name="worker")
        await _load(settings, run, rounds)
        last = await _last_sequence(cluster.nodes[0])
        run.say(f"all nodes are healthy; the readers catch up to {last:,}")
        await _caught_up(ordered, worker, last)
        ordered.stopping = worker.stopping = True
    if settings.report is not None:
        run.history.write(settings.report)
    readings = await read_back(run)
    verdict = check(run.history, readings, gapless=True)
    check_readers(verdict, next(iter(readings.values())), ordered=ordered.received, worker=worker)
    return KillReport(seed, verdict, rounds, ordered, worker, run.history)


async def _load(settings: Settings, run: Run, rounds: KillRounds) -> None:
    """Run all rounds under load; publishers get their last answers from a healthy cluster."""
    urls = run.cluster.urls
    workload = Workload(
        [urls, urls], SUBJECT, settings.rate, run.history,
        timeout_s=ANSWER_WITHIN_S, retry_for_s=RETRY_FOR_S,
    )  # fmt: skip
    task = asyncio.create_task(workload.run(), name="workload")
    try:
        for number in range(1, settings.rounds + 1):
            run.say(f"round {number} of {settings.rounds}")
            last = number == settings.rounds
            await rounds.one(wait=last or rounds.dice.random() < WAIT_FOR_HEALTH)
    finally:
        workload.stop()
        await task


async def _last_sequence(node: LocalNode) -> int:
    async with client_of(node) as client:
        info = await client.jetstream(timeout=HEAL_WITHIN_S).stream_info(STREAM)
        return int(info.state.last_seq)


async def _caught_up(ordered: OrderedReader, worker: Worker, last: int) -> None:
    """Wait, up to a limit; the checker reports what the readers lack after that."""
    deadline = time.monotonic() + CATCH_UP_WITHIN_S
    while time.monotonic() < deadline:
        if ordered.last >= last and len(worker.received) >= last:
            return
        await asyncio.sleep(0.1)
