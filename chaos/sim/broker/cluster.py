"""One simulated cluster of whole brokers, with its clients: from the seed to the verdict.

Owns: the parts of one run and their order: start, work under faults, heal, settle, check.
May not touch: what clients and faults do.
Spec: everything follows from the seed. Nodes are the real code (chaos/sim/world/node.py)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from broker.cluster.clock_watch import IN_DOUBT
from broker.cluster.replica import state_flush
from broker.store import persistence, segments, state_db
from chaos.sim.broker.fault_script import DURATIONS_NS
from chaos.sim.broker.isolation import isolated
from chaos.sim.broker.marks import host_marks, log_mark
from chaos.sim.broker.nemesis import CLOCK_JUMP_NS, CLOCK_WRONG_NS, BrokerNemesis
from chaos.sim.broker.plan import Plan
from chaos.sim.broker.queue_bounds import LOOK_EVERY, SMALL_BOUNDS, QueueBounds
from chaos.sim.broker.workloads import WORKLOADS
from chaos.sim.clients.client import SimClient
from chaos.sim.consensus.schedule import rng_for
from chaos.sim.promises.broken import BrokenPromise
from chaos.sim.promises.consumer_states import ConsumerStates, live_differs
from chaos.sim.promises.dispatches import Dispatches, watched_deliveries
from chaos.sim.promises.every_step import ConsensusObserver
from chaos.sim.promises.journal import Journal
from chaos.sim.promises.seen_replica import SeenReplica
from chaos.sim.promises.stored import check_alike
from chaos.sim.promises.stored_times import TOLERANCE_NS
from chaos.sim.world.database import SpoolFile
from chaos.sim.world.links import Fabric
from chaos.sim.world.node import BrokerNode
from chaos.sim.world.node_loop import NodeLoop
from chaos.sim.world.replacement import Replacement, replaced
from chaos.sim.world.virtual_time import (
    MS,
    NS,
    CurrentClock,
    WorldClock,
    WorldTime,
    simulated_clocks,
)  # fmt: skip
from raft.host.compaction import CompactionPolicy
from raft.snapshot import inbound, outbound

FAULTS_LAST_NS = max(DURATIONS_NS)  # after this time the last fault of the script is over
# Progress after the faults. Measured over 200 seeds: every stream is led after 1.4 s at most, and
# all replicas agree 3.5 s after the last client has finished.
LED_WITHIN_NS = 10 * NS
AGREE_WITHIN_NS = 20 * NS
FINISH_WITHIN_NS = 60 * NS  # some clients alone wait for half of it
# With these, logs are compacted often, and a node that was away needs a snapshot.
SHORT_LOGS = CompactionPolicy(keep_entries=5, step_entries=5, step_bytes=1 << 10, every_ticks=4)
# Also, blocks are sealed after a few rows, so that they are read from disk, and a snapshot is sent
# slowly and in many pieces, so that it is interrupted and resumed.
SNAPSHOT_BYTES_PER_S = 24 << 10  # unless there is a flood, which would take too long
OFTEN = (
    Replacement(state_flush, "FLUSH_EVERY_S", lambda _: 0.5),
    Replacement(segments, "SEAL_ROWS", lambda _: 8),
    Replacement(persistence, "SEAL_ROWS", lambda _: 8),
    Replacement(persistence, "CHECKPOINT_BYTES", lambda _: 256),
    Replacement(state_db, "FILE_BYTES_MIN", lambda _: 256),
    Replacement(outbound, "PIECE_BYTES", lambda _: 512),
    Replacement(outbound, "WINDOW_BYTES", lambda _: 4096),
)
SLOWLY = Replacement(outbound, "SendRate", lambda rate: lambda _: rate(SNAPSHOT_BYTES_PER_S))
SCRUB_NS = 4 * NS  # with damaged states
IN_MEMORY_MIN = 3  # replicas: one of them may restart, and nothing is lost
PACKED = b"JRZ1"  # how a compressed block begins (broker/store/block/packing.py)
COMPRESSED = "blocks are stored compressed"
SEALED = "what is stored is encrypted"
FILED = "blocks are stored in files"
DAMAGING = frozenset(("damage", "state damage", "database damage"))  # kinds of faults
DAMAGE_FOUND = ("stream %s is damaged here: %s", "stream %s %s")
STEPS_MAX = 200_000  # of one run; ten times what a long one needs


class BrokerCluster:
    """`run` raises BrokenPromise."""

    def __init__(self, seed: int, plan: Plan, *, tell: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.plan = plan
        self.counters: Counter[str] = Counter()
        self.world = WorldTime()
        self._tell = tell
        self._current = CurrentClock(WorldClock(self.world))
        self._failures: list[str] = []
        self._violations: list[str] = []
        self.fabric = Fabric(self.world, rng_for(seed, "network"))
        self.fabric.on_exception = lambda where, error: self._failed(where, {"exception": error})
        names = [f"n{number + 1}" for number in range(plan.nodes)]
        disk = rng_for(seed, "disk")
        damaged = any(fault.kind == "state damage" for fault in plan.script)
        self._scrub_ns = SCRUB_NS if damaged else 0
        compaction = SHORT_LOGS if plan.short_logs else CompactionPolicy()

        def computer(name: str) -> BrokerNode:
            return BrokerNode(
                name,
                names,
                world=self.world,
                current=self._current,
                fabric=self.fabric,
                rng=disk,
                on_exception=self._failed,
                compaction=compaction,
                scrub_ns=self._scrub_ns,
                cipher=plan.cipher,
            )

        self.nodes = [computer(name) for name in names]
        self._queues = QueueBounds(self.nodes)
        self._look_at_step = 0
        self.client_loop = NodeLoop(
            "clients",
            self.world,
            self._current,
            on_exception=self._failed,
            blocking_ns=lambda: MS,
        )
        self.journal = Journal(self.world)
        self.rng = rng_for(seed, "clients")
        self.healed_ns = 0
        self.dispatches = Dispatches(self.now_ns, self._running_node, self.replicas, self._broken)
        self._workloads = [WORKLOADS[name](self) for name in plan.workloads]
        self._streams = self._present()
        self._clients: list[SimClient] = []
        self.nemesis = BrokerNemesis(
            plan.script,
            world=self.world,
            nodes=self.nodes,
            spare=computer(f"n{plan.nodes + 1}"),
            clients=self._clients,
            fabric=self.fabric,
            leaders=self._leading_nodes,
            tell=self.story,
        )

    # -- the trace

    def story(self, who: str, what: str) -> None:
        """Add a line to the story of this run."""
        self.counters[what.partition(":")[0]] += 1
        if self._tell is not None:
            self._tell(f"{self.world.now_ns / NS:9.4f} {who:8} {what}")

    def _spool(self, **_: Any) -> SpoolFile:
        """Where the running node keeps a snapshot until it has all of it."""
        name = self._running_node()
        return SpoolFile(next(node.disk.database for node in self.nodes if node.name == name))

    def _running_node(self) -> str:
        return getattr(self._current.clock, "name", "--")

    def _logged(self, text: str) -> None:
        if self._tell is not None:
            self._tell(f"{self.world.now_ns / NS:9.4f} {self._running_node():8} {text}")

    def _broken(self, what: str) -> None:
        self._violations.append(what)

    def _failed(self, who: str, context: dict[str, Any]) -> None:
        """The code under test raised an exception where none is allowed."""
        error = context.get("exception")
        self._failures.append(f"{who}: {context.get('message', '')} {error!r}")

    # -- running

    def run(self) -> None:
        """A second run needs a second cluster."""
        loops = [self.client_loop]
        dice = rng_for(self.seed, "dice")
        tell = None if self._tell is None else self._logged
        observer = ConsensusObserver(self._running_node, self._failures.append)
        consumers = ConsumerStates(self._broken)
        observers = (*observer.replacements(), *consumers.replacements())
        floods = "flood" in self.plan.workloads
        with (
            simulated_clocks(self._current, dice),
            isolated(loops, tell, self.mark, self._failed),
            replaced(
                (
                    *observers,
                    *(OFTEN if self.plan.short_logs else ()),
                    *((SLOWLY,) if self.plan.short_logs and not floods else ()),
                    Replacement(inbound, "SpooledTemporaryFile", lambda _: self._spool),
                    *(SMALL_BOUNDS if self.plan.small_queues else ()),
                )
            ),
            watched_deliveries(self.dispatches),
        ):
            try:
                self._run()
            finally:
                loops += [node.loop for node in self.nodes if node.loop is not None]

    def _run(self) -> None:
        for node in self.nodes:
            node.start()
        work = self.client_loop.start(self._work(), "work")
        self.nemesis.start()
        self._until(work.done, self.plan.work_ns + FAULTS_LAST_NS)
        self.nemesis.heal()
        self.healed_ns = self.world.now_ns
        if not self._until(self._led, LED_WITHIN_NS):
            raise BrokenPromise(f"streams without a leader: {self._states()}")
        if not self._until(work.done, FINISH_WITHIN_NS):
            raise BrokenPromise("the clients do not finish although the faults are over")
        work.result()
        if self._scrub_ns:  # by then every node has found what is damaged
            self._until(lambda: False, 2 * self._scrub_ns)
        if not self._until(self._settled, AGREE_WITHIN_NS):
            raise BrokenPromise(f"no agreement although the faults are over: {self._states()}")
        self._check()

    def _until(self, done: Callable[[], bool], within_ns: int) -> bool:
        world, violations, failures = self.world, self._violations, self._failures

        def stop() -> bool:
            if violations:
                raise BrokenPromise(violations[0])
            if failures:
                raise BrokenPromise(f"the code under test has failed: {failures[0]}")
            if world.steps >= self._look_at_step:
                self._look_at_step = world.steps + LOOK_EVERY
                if full := self._queues.over_bound():
                    raise BrokenPromise(full)
                if world.steps > STEPS_MAX:
                    raise BrokenPromise(f"busy: {STEPS_MAX} events and no end: {self._states()}")
            return done()

        return world.run_until(world.now_ns + within_ns, stop)

    def client(self, name: str) -> SimClient:
        """The inbox contains the name: two clients of one name would get each other's answers."""
        assert all(other.name != name for other in self._clients), f"two clients named {name}"
        client = SimClient(
            name,
            self.client_loop,
            self.nodes,
            world=self.world,
            rng=self.rng,
            delay_ns=self.fabric.delay_ns,
        )
        self._clients.append(client)
        client.start()
        return client

    async def _work(self) -> None:
        admin = self.client("admin")
        for config in self._streams:
            await create_stream(admin, self._storage(config) | config)
        async with asyncio.TaskGroup() as tasks:
            for workload in self._workloads:
                tasks.create_task(workload.run())

    def _storage(self, config: dict[str, Any]) -> dict[str, Any]:
        """The storage settings of a stream, unless its workload sets them."""
        stored = {"compression": "s2"} if self.plan.compresses else {}
        in_memory = self.plan.in_memory and config["num_replicas"] >= IN_MEMORY_MIN
        return stored | ({"storage": "memory"} if in_memory else {})

    # -- what workloads see (chaos/sim/clients/workload.py)

    @property
    def replicas_max(self) -> int:
        return self.plan.replicas_max

    @property
    def links_stay_up(self) -> bool:
        return {fault.kind for fault in self.plan.script} <= {"kill"}

    @property
    def clock_error_ns(self) -> int:
        if not self.time_in_doubt:
            return TOLERANCE_NS
        return 2 * (CLOCK_JUMP_NS if self.plan.nodes == 1 else CLOCK_WRONG_NS)

    @property
    def time_in_doubt(self) -> bool:
        return self.plan.nodes == 1 or log_mark(IN_DOUBT) in self.counters

    def now_ns(self) -> int:
        return self.world.now_ns

    def replicas(self, stream: str) -> dict[str, SeenReplica]:
        found: dict[str, SeenReplica] = {}
        for node in self.nodes:
            jetstream = node.runtime.jetstream if node.runtime is not None else None
            replica = jetstream.replica_of("$G", stream) if jetstream is not None else None
            if replica is not None:
                found[node.name] = replica
        return found

    def mark(self, branch: str) -> None:
        self.counters[branch] += 1

    def _leading_nodes(self) -> list[str]:
        return sorted(
            name
            for config in self._streams
            for name, replica in self.replicas(config["name"]).items()
            if replica.is_leading
        )

    # -- the end

    def _present(self) -> list[dict[str, Any]]:
        return [config for one in self._workloads for config in one.streams()]

    def _led(self) -> bool:
        """Whether every existing stream has a leader that serves it."""
        found = (self.replicas(config["name"]).values() for config in self._present())
        return all(any(one.is_leading for one in some) for some in found if some)

    def _settled(self) -> bool:
        return all(
            _agree(replicas, config["num_replicas"]) and not live_differs(replicas)
            for config in self._present()
            for replicas in (self.replicas(config["name"]),)
        )

    def _states(self) -> dict[str, Any]:
        return {
            config["name"]: {
                name: (replica.stream.applied, replica.is_leading, live_differs({name: replica}))
                for name, replica in self.replicas(config["name"]).items()
            }
            for config in self._present()
        }

    def _check(self) -> None:
        disks = [node.disk for node in self.nodes]
        if any(disk.database.has_value(PACKED) or disk.values.holds(PACKED) for disk in disks):
            self.mark(COMPRESSED)
        if self.plan.cipher:
            self._check_sealed()
        if any(disk.values.used for disk in disks):
            self.mark(FILED)
        found = {log_mark(line) for line in DAMAGE_FOUND} & self.counters.keys()
        if found and not DAMAGING & {fault.kind for fault in self.plan.script}:
            raise BrokenPromise("a node finds damage where nothing was damaged")
        for node in self.nodes:
            jetstream = node.runtime.jetstream if node.runtime is not None else None
            if jetstream is not None:
                for mark in host_marks(jetstream.host_statistics()):
                    self.mark(mark)
        for config in self._present():
            replicas = self.replicas(config["name"])
            digests = {n: (r.stream.applied, r.stream.digest()) for n, r in replicas.items()}
            check_alike(config["name"], digests)
        for workload in self._workloads:
            workload.check()

    def _check_sealed(self) -> None:
        """Every log and every state contains a stream name; none may be on disk unencrypted."""
        names = [config["name"] for config in self._streams]
        for node in self.nodes:
            for name in names:
                if node.disk.holds(name.encode()):
                    raise BrokenPromise(f"{node.name} has the name {name} in clear on its disk")
        self.mark(SEALED)


def _agree(replicas: dict[str, SeenReplica], count: int) -> bool:
    """Whether one replica leads, and all have applied the same index of the same group."""
    applied = {(replica.group, replica.stream.applied) for replica in replicas.values()}
    leading = [replica for replica in replicas.values() if replica.is_leading]
    return len(replicas) == count and len(applied) == 1 and len(leading) == 1


async def create_stream(client: SimClient, config: dict[str, Any]) -> None:
    while True:
        try:
            answer = await client.api(f"STREAM.CREATE.{config['name']}", config)
        except TimeoutError:
            continue
        if "error" not in answer:
            return
