"""One simulated node: a real RaftCore and real Rounds, driven by simulated events.

Owns: the core of one node, its state machine, its crashes and pauses, its reaction to a failed
disk and to a lost or damaged log.
May not touch: other nodes, except through the network; the order of writes, flushes and promises
(raft/host/rounds.py, driven by chaos/sim/consensus/round_loop.py); when a group sleeps and
when a read needs no barrier (raft/host/quiescence.py, raft/host/reads.py).
Spec: raft/host: a host marks a group after each input; the rounds do the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from chaos.sim.consensus.checks import SafetyChecks
from chaos.sim.consensus.disk import EMPTY, DiskImage, MachineState, SimDisk
from chaos.sim.consensus.environment import SimEnvironment
from chaos.sim.consensus.links import SimLinks
from chaos.sim.consensus.round_loop import GROUP, SimGroup, SimRoundLoop
from chaos.sim.consensus.schedule import MS, SECOND
from chaos.sim.consensus.snapshots import SimSnapshots
from raft.core.log import RaftLog
from raft.core.messages import Entry, Message
from raft.core.raft_core import CoreParts, RaftCore
from raft.core.ready import Ready
from raft.host.quiescence import Quiescence
from raft.host.rounds import Rounds
from raft.host.ticker import TickPace
from raft.types import GroupId, Index, Members, NodeId, NotLeader, Role, SnapshotMeta, Term

TICK_US = 50 * MS
TICK_SECONDS = TICK_US / SECOND
CHUNK_BYTES = 3  # a snapshot is a digest of eight bytes, so it has three chunks


@dataclass(slots=True)
class SimProposal:
    name: bytes
    term: Term


class SimNode:
    """`starts` counts restarts: an event that was scheduled before a restart has no effect."""

    def __init__(
        self,
        node: NodeId,
        environment: SimEnvironment,
        checks: SafetyChecks,
        peers: Mapping[NodeId, SimNode],
        rng: Random,
        *,
        clock_rate: float,
        parts: CoreParts,
        rounds_type: type[Rounds[SimGroup]],
    ) -> None:
        """`peers` are all nodes of the cluster, this one included."""
        faults = environment.faults
        self.id = node
        self.disk = SimDisk(power_fails=not faults.relaxed, in_memory=faults.memory_only)
        self.state = EMPTY
        self.starts = 0
        self.disk_before_loss: DiskImage | None = None  # the disk before its log was given up
        self.proposals: dict[Index, SimProposal] = {}  # not applied yet
        self._environment = environment
        self._checks = checks
        self._peers = peers
        self._rng = rng
        self._parts = parts
        self._rounds_type = rounds_type
        self._clock_rate = clock_rate
        self._tick_us = int(TICK_US * clock_rate)
        self.links = SimLinks(node, environment, peers)
        self._core: RaftCore | None = None  # None while the node is down or its disk has failed
        self._group: SimGroup | None = None
        self._rounds: SimRoundLoop | None = None  # None while the node is down
        self._disk_failed = False
        self._paused = False
        self._held_back: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._snapshots = SimSnapshots(self, self.disk, environment, rng)
        self._pace = self._new_pace()
        self._quiescence = self._new_quiescence({})
        # By context: the length of the ledger when the read began, and the index that must be
        # applied before it is served (-1: not confirmed yet).
        self._reads: dict[int, tuple[int, Index]] = {}

    # -- start and crash

    @property
    def core(self) -> RaftCore:
        assert self._core is not None, "this node is down"
        return self._core

    @property
    def up(self) -> bool:
        return self._core is not None

    @property
    def running(self) -> bool:
        """Whether the process is up, even if its disk has failed."""
        return self._rounds is not None

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def leads(self) -> bool:
        return self._core is not None and self._core.role is Role.LEADER

    @property
    def recovering(self) -> bool:
        """Whether it lost its log and has not caught up, by what is on its disk."""
        return self.disk.durable.hard_state.lives % 2 == 1

    def _give_up_log(self, before: DiskImage, why: str) -> None:
        self.disk_before_loss = before
        self.disk.lose_log()
        self._checks.count("logs given up")
        self._environment.trace(self.id, "gives up its log", why)

    def start(self) -> None:
        """Start from what is on the disk: after a crash, or after a failure of the disk, which
        stops the group but not the process."""
        environment = self._environment
        faults = environment.faults
        self.check_log()
        image = self.disk.live
        self.starts += 1
        self.state = image.state
        self._core = RaftCore(
            node=self.id,
            voters=environment.begun_with.voters,
            learners=environment.begun_with.learners,
            log=RaftLog(image.log, tail_bytes_max=self._rng.choice((0, 500, 1 << 20))),
            hard_state=image.hard_state,
            config=faults.core,
            draw=self._rng.randrange,
            applied=self.state.index,
            parts=self._parts,
        )
        self._checks.started(self)
        stopped = self._group
        self._group = SimGroup(
            self._core, self.disk, persistent=not faults.memory_only, relaxed=faults.relaxed
        )
        if self._rounds is None:
            rounds = self._rounds_type()
            self._rounds = SimRoundLoop(rounds, self, self.disk, environment, self._rng)
        else:
            self._disk_failed = False
            self._rounds.restart(stopped)
        self._pace = self._new_pace()
        self._quiescence = self._new_quiescence({GROUP: self._group})
        self.after(self._rng.randrange(self._tick_us), self._tick)
        self._snapshots.start()

    def _new_pace(self) -> TickPace:
        lease_ticks = self._environment.faults.core.lease_ticks
        return TickPace(tick_seconds=TICK_SECONDS, lease_ticks=lease_ticks)

    def _new_quiescence(self, groups: Mapping[GroupId, SimGroup]) -> Quiescence[SimGroup]:
        return Quiescence(
            transport=self.links,
            config=self._environment.faults.core,
            groups=groups,
            mark=lambda _: self.mark(),
            call_soon=lambda action: self.after(1, action),
        )

    def clock(self) -> float:
        """Seconds by this node's clock, which has a rate of its own."""
        return self._environment.schedule.now_us / SECOND / self._clock_rate

    def check_log(self) -> None:
        """Give up a log with a damaged entry; the leader sends it again."""
        damaged = self.disk.durable.damaged
        if damaged is not None:
            self._give_up_log(self.disk.durable, f"entry {damaged} is damaged")

    def crash(self) -> int:
        """Lose memory and what was not flushed. Returns the number of lost writes."""
        self._stop()
        self._group = self._rounds = None
        self._disk_failed = False
        before = self.disk.safe
        lost = self.disk.crash(self._rng, harsh=self._environment.faults.harsh_disk)
        if self._environment.faults.memory_only:
            self._give_up_log(before, "it was in memory only")
        return lost

    def _stop(self) -> None:
        self._core = None
        self._paused = False
        self._held_back.clear()
        self._snapshots.drop_received()
        self.proposals.clear()
        self._reads.clear()

    def disk_failed(self) -> None:
        """A write or a flush has failed: it is unknown what is on the disk. A group with its log on
        this disk stops; one with its log in memory continues, but cannot vote."""
        faults, rng = self._environment.faults, self._rng
        self._disk_failed = True
        self._checks.count("failed disks")
        delay = rng.randint(1, faults.outage_us)
        self._environment.schedule.after(delay, self._disk_works, self.starts)
        if faults.memory_only:
            self.disk.lose_unflushed(rng, harsh=faults.harsh_disk)
            return
        assert self._group is not None
        self._group.stopped = "the disk has failed"
        self._stop()
        self._checks.counters["writes lost"] += self.disk.crash(rng, harsh=faults.harsh_disk)

    def _disk_works(self, starts: int) -> None:
        if starts != self.starts or self._environment.calm:
            return  # at the end of the faults the nemesis decides
        if self._core is None:
            self.recover_disk()
        else:
            self._run(starts, self.recover_disk, ())  # not while it is paused

    def recover_disk(self) -> None:
        """If the disk has failed, open it again."""
        if not self._disk_failed:
            return
        self._environment.trace(self.id, "disk works", "again")
        self._checks.count("recovered disks")
        assert self._rounds is not None
        if self._core is None:
            self.start()
        else:
            self._disk_failed = False
            self._rounds.restart(None)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        """Continue after a pause: events that arrived meanwhile are handled now."""
        self._paused = False
        held_back, self._held_back = self._held_back, []
        for action, arguments in held_back:
            self._run(self.starts, action, arguments)

    def after(self, delay_us: int, action: Callable[..., None], *arguments: object) -> None:
        self._environment.schedule.after(delay_us, self._run, self.starts, action, arguments)

    def _run(self, starts: int, action: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if starts != self.starts or self._core is None:
            return
        if self._paused:
            self._held_back.append((action, arguments))
            return
        action(*arguments)
        if self._core is not None:
            self.observe()

    def observe(self) -> None:
        self._checks.observe(self)

    def count(self, event: str) -> None:
        self._checks.count(event)

    # -- inputs

    def mark(self) -> None:
        """After every input: the core may have a Ready. After a round the rounds decide that."""
        assert self._rounds is not None
        assert self._group is not None
        if self.core.has_ready():
            self._rounds.mark(self._group)

    def deliver(self, message: Message) -> None:
        self._run(self.starts, self._step, (message,))

    def ask(self, action: Callable[[RaftCore], None]) -> None:
        """Run an action on the core, if this node is up."""
        self._run(self.starts, self._ask, (action,))

    def _ask(self, action: Callable[[RaftCore], None]) -> None:
        action(self.core)
        self.mark()

    def _step(self, message: Message) -> None:
        self._environment.trace(self.id, "receives", message)
        self._checks.received(self, message)
        self._quiescence.heard(message.sender)
        self.core.step(message)
        self.mark()

    def _tick(self) -> None:
        """As raft/host/host.py does."""
        self.after(self._tick_us, self._tick)
        core, group = self.core, self._group
        assert group is not None
        self._pace.ticked(self.clock())
        sleepy = self._environment.faults.sleepy
        if sleepy:
            self._quiescence.tick()
        if not core.asleep:
            core.tick()
            if sleepy and not self._environment.calm:
                self._quiescence.ticked(group)
                if core.asleep:
                    self._checks.count("sleeps")
                    self._environment.trace(self.id, "sends to sleep", f"at {core.last_index}")
        self.mark()

    def hear(self, node: NodeId) -> None:
        """A beat of another node arrives."""
        self._run(self.starts, self._hear, (node,))

    def _hear(self, node: NodeId) -> None:
        self._quiescence.heard(node)

    def read(self, context: int, *, lease: bool) -> None:
        """A client read, as raft/host/host.py serves it: immediately if reads are current,
        otherwise after a read barrier."""
        if lease and self.reads_are_current():
            self._checks.read(self, self._checks.shown, barrier=False)
            return
        try:
            self.core.read_index(context)
        except NotLeader:
            return
        self._reads[context] = (len(self._checks.ledger), Index(-1))

    def reads_are_current(self) -> bool:
        assert self._group is not None
        return self._group.reads.are_current(self._pace, self.clock())

    def _serve_reads(self) -> None:
        for context, (committed, index) in list(self._reads.items()):
            if 0 <= index <= self.state.index:
                del self._reads[context]
                self._checks.read(self, committed, barrier=True)

    def propose(self, name: bytes) -> None:
        core = self.core
        index = core.propose(name)
        self.proposals[index] = SimProposal(name, core.term)
        self._environment.trace(self.id, "proposes", f"{name[:12]!r} at {index} term {core.term}")

    # -- rounds

    def send(self, message: Message) -> None:
        self._checks.sent(self, message)
        receiver = self._peers[message.to]
        if not self._environment.network.send(self.id, message.to, receiver.deliver, message):
            self._environment.trace(self.id, "drops", message)

    def took_ready(self, ready: Ready) -> None:
        self._checks.wrote(self, ready.entries)

    def flush_ended(self) -> None:
        if not self.recovering:
            self.disk_before_loss = None

    def apply(self, ready: Ready) -> None:
        """As raft/host/applier.py does."""
        if ready.snapshot is not None:
            self._snapshots.install(ready.snapshot)
        for read in ready.reads:
            self._reads[read.context] = (self._reads[read.context][0], read.index)
        if ready.committed:
            self._apply_entries(ready.committed)
        if self._reads:
            self._serve_reads()
        for to in ready.snapshot_to:
            self._snapshots.stream(to)

    def _apply_entries(self, entries: list[Entry]) -> None:
        environment = self._environment
        for entry in entries:
            self.state = self.state.with_entry(entry)
            self._checks.applied(self, entry)
            proposal = self.proposals.pop(entry.index, None)
            if proposal is not None and proposal.term == entry.term:
                self._checks.acknowledged(self, proposal.name, entry)
        environment.trace(self.id, "applies", f"up to {self.state.index}")
        self.core.applied(self.state.index)

    # -- snapshots

    def supersede_log(self) -> None:
        assert self._rounds is not None
        self._rounds.supersede()

    def restore(self, state: MachineState) -> None:
        self.state = state
        self._checks.installed(self)

    def snapshot_chunks(self, state: MachineState) -> list[bytes]:
        digest = state.digest
        return [digest[at : at + CHUNK_BYTES] for at in range(0, len(digest), CHUNK_BYTES)]

    def send_snapshot(self, message: Message, state: MachineState, members: Members) -> bool:
        receiver = self._peers[message.to]
        return self._environment.network.send(
            self.id,
            message.to,
            receiver.take_snapshot,
            message,
            self.snapshot_chunks(state),
            members,
        )

    def take_snapshot(self, message: Message, chunks: list[bytes], members: Members) -> None:
        if self.up:
            state = MachineState(message.index, message.log_term, b"".join(chunks))
            meta = SnapshotMeta(message.index, message.log_term)
            self._snapshots.received(meta, state, members)
            self.deliver(message)
