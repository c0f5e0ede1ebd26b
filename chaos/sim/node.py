"""One simulated node: a real RaftCore, driven by simulated events instead of a host.

Owns: the core of one node, its state machine, its rounds and flushes, its crashes and pauses, its
reaction to a lost or damaged log, its watch over the other nodes while the group sleeps.
May not touch: other nodes, except through the network.
Spec: raft.core.ready.Ready (the order of a round). As in the real host there is at most one
flush at a time, and what is written meanwhile goes into the next one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

from chaos.sim.checks import SafetyChecks
from chaos.sim.disk import EMPTY, DiskImage, DiskWrite, MachineState, SimDisk
from chaos.sim.environment import SimEnvironment
from chaos.sim.schedule import MS
from raft.core.log import RaftLog
from raft.core.messages import Entry, Message, MessageKind
from raft.core.raft_core import CoreParts, RaftCore
from raft.core.ready import Ready
from raft.types import Index, Members, NodeId, NotLeader, Role, SnapshotMeta, Term

TICK_US = 50 * MS
CHUNK_BYTES = 3  # a snapshot is a digest of eight bytes, so it has three chunks
SLEEP_AFTER_TICKS = 4


@dataclass(slots=True)
class SimProposal:
    name: bytes
    term: Term


def chain(digest: bytes, entry: Entry) -> bytes:
    """The next link of the hash chain."""
    text = b"%d/%d/%d/" % (entry.index, entry.term, entry.kind)
    return blake2b(digest + text + entry.data, digest_size=8).digest()


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
    ) -> None:
        """`peers` are all nodes of the cluster, this one included."""
        self.id = node
        self.disk = SimDisk()
        self.state = EMPTY
        self.starts = 0
        self.slow_disk = False
        self.stalled_until_us = 0  # the disk finishes no flush before this time
        self.disk_before_loss: DiskImage | None = None  # the disk before its log was given up
        self.proposals: dict[Index, SimProposal] = {}  # not applied yet
        self._environment = environment
        self._checks = checks
        self._peers = peers
        self._rng = rng
        self._parts = parts
        self._tick_us = int(TICK_US * clock_rate)
        self._core: RaftCore | None = None
        self._paused = False
        self._held_back: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._round_scheduled = False
        self._flushing: list[Ready] = []
        self._to_flush: list[Ready] = []
        self._received: dict[SnapshotMeta, tuple[MachineState, Members]] = {}
        self._ticked_us = 0
        self._idle_ticks = 0
        self._heard_us: dict[NodeId, int] = {}
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
    def paused(self) -> bool:
        return self._paused

    @property
    def leads(self) -> bool:
        return self._core is not None and self._core.role is Role.LEADER

    @property
    def recovering(self) -> bool:
        """Whether it lost its log and has not caught up, by what is on its disk."""
        return self.disk.durable.hard_state.lives % 2 == 1

    def _give_up_log(self, why: str) -> None:
        self.disk_before_loss = self.disk.durable
        self.disk.lose_log()
        self._checks.count("logs given up")
        self._environment.trace(self.id, "gives up its log", why)

    def start(self) -> None:
        environment = self._environment
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
            config=environment.faults.core,
            draw=self._rng.randrange,
            applied=self.state.index,
            parts=self._parts,
        )
        self._checks.started(self)
        self._ticked_us = environment.schedule.now_us
        self._heard_us.clear()
        self._after(self._rng.randrange(self._tick_us), self._tick)
        self._after(self._rng.randrange(environment.faults.checkpoint_us), self._checkpoint)

    def check_log(self) -> None:
        """A log with a damaged entry is given up; the leader sends it again."""
        damaged = self.disk.durable.damaged
        if damaged is not None:
            self._give_up_log(f"entry {damaged} is damaged")

    def crash(self) -> int:
        """Lose memory and what was not flushed. Returns the number of lost writes."""
        self._core = None
        self._paused = False
        self._round_scheduled = False
        self._held_back.clear()
        self._flushing.clear()
        self._to_flush.clear()
        self._received.clear()
        self.proposals.clear()
        self._reads.clear()
        lost = self.disk.crash(self._rng, harsh=self._environment.faults.harsh_disk)
        if self._environment.faults.memory_only:
            self._give_up_log("it was in memory only")
        return lost

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        """Continue after a pause: events that came meanwhile are handled at once."""
        self._paused = False
        held_back, self._held_back = self._held_back, []
        for action, arguments in held_back:
            self._run(self.starts, action, arguments)

    def _after(self, delay_us: int, action: Callable[..., None], *arguments: object) -> None:
        self._environment.schedule.after(delay_us, self._run, self.starts, action, arguments)

    def _run(self, starts: int, action: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if starts != self.starts or self._core is None:
            return
        if self._paused:
            self._held_back.append((action, arguments))
            return
        action(*arguments)
        if self._core is not None:
            self._checks.observe(self)
            if not self._round_scheduled and self._core.has_ready():
                self._round_scheduled = True
                self._after(self._rng.randrange(1, 1500), self._round)

    # -- inputs

    def deliver(self, message: Message) -> None:
        self._run(self.starts, self._step, (message,))

    def ask(self, action: Callable[[RaftCore], None]) -> None:
        """Run an action on the core, if this node is up."""
        self._run(self.starts, self._ask, (action,))

    def _ask(self, action: Callable[[RaftCore], None]) -> None:
        action(self.core)

    def _step(self, message: Message) -> None:
        self._environment.trace(self.id, "receives", message)
        self._checks.received(self, message)
        self.core.step(message)

    def _tick(self) -> None:
        self._after(self._tick_us, self._tick)
        core = self.core
        now = self._environment.schedule.now_us
        if now - self._ticked_us > 2 * self._tick_us:
            core.end_lease()  # this node was paused: its ticks did not count that time
        self._ticked_us = now
        if not core.asleep:
            core.tick()
        if self._environment.faults.sleepy:
            self._watch(core, now)

    def _watch(self, core: RaftCore, now: int) -> None:
        """Send an idle group to sleep. Nodes tell each other that they are up; a node that is not
        heard wakes the groups it belongs to."""
        environment = self._environment
        for other in self._peers.values():
            if other is not self:
                environment.network.send(self.id, other.id, other.hear, self.id)
        horizon = now - environment.faults.core.election_ticks * self._tick_us
        reachable = {node for node, heard in self._heard_us.items() if heard >= horizon}
        if core.asleep:
            if not reachable.issuperset(n for n in core.members.everyone() if n != self.id):
                core.wake()
                if core.leader not in reachable:
                    core.leader_lost()
        elif environment.calm or not core.may_sleep(reachable):
            self._idle_ticks = 0
        else:
            self._idle_ticks += 1
            if self._idle_ticks > SLEEP_AFTER_TICKS:
                core.sleep()
                self._checks.count("sleeps")
                environment.trace(self.id, "sends to sleep", f"at {core.last_index}")

    def hear(self, node: NodeId) -> None:
        """Another node is up."""
        self._run(self.starts, self._hear, (node,))

    def _hear(self, node: NodeId) -> None:
        self._heard_us[node] = self._environment.schedule.now_us

    def read(self, context: int, *, lease: bool) -> None:
        """A client read: it must see everything that is committed by now."""
        on_time = self._environment.schedule.now_us - self._ticked_us <= 2 * self._tick_us
        try:
            self.core.read_index(context, lease=lease and on_time)
        except NotLeader:
            return
        self._reads[context] = (len(self._checks.ledger), Index(-1))

    def _serve_reads(self) -> None:
        for context, (committed, index) in list(self._reads.items()):
            if 0 <= index <= self.state.index:
                del self._reads[context]
                self._checks.read(self, committed)

    def propose(self, name: bytes) -> None:
        core = self.core
        index = core.propose(name)
        self.proposals[index] = SimProposal(name, core.term)
        self._environment.trace(self.id, "proposes", f"{name[:12]!r} at {index} term {core.term}")

    def _send(self, message: Message) -> None:
        self._checks.sent(self, message)
        receiver = self._peers[message.to]
        if not self._environment.network.send(self.id, message.to, receiver.deliver, message):
            self._environment.trace(self.id, "drops", message)

    # -- rounds

    def _round(self) -> None:
        self._round_scheduled = False
        environment = self._environment
        ready = self.core.ready()
        if ready.hard_state is not None or ready.entries:
            self._checks.wrote(self, ready.entries)
            self.disk.write(DiskWrite(ready.hard_state, ready.entries))
            if environment.tracing:
                environment.trace(self.id, "writes", _written(ready))
        if ready.snapshot is not None:
            self._install(ready.snapshot)
        for message in ready.messages:
            self._send(message)
        for to in ready.snapshot_to:
            self._stream_snapshot(to)
        if ready.must_flush:
            self._to_flush.append(ready)
            self._start_flush()
        for read in ready.reads:
            self._reads[read.context] = (self._reads[read.context][0], read.index)
        if ready.committed:
            self._apply(ready.committed)
        if self._reads:
            self._serve_reads()

    def _start_flush(self) -> None:
        if self._flushing or not self._to_flush:
            return
        self._flushing, self._to_flush = self._to_flush, []
        faults, rng = self._environment.faults, self._rng
        delay = rng.randint(1, faults.flush_us)
        if self.slow_disk or (not self._environment.calm and rng.random() < faults.slow_flush):
            delay += rng.randrange(faults.slow_flush_us)
        delay += max(0, self.stalled_until_us - self._environment.schedule.now_us)
        self._after(delay, self._flush_done, self.disk.written)

    def _flush_done(self, position: int) -> None:
        self.disk.flush_to(position)
        readies = self._flushing
        self._flushing = []
        if not self.recovering:
            self.disk_before_loss = None
        for ready in readies:
            self.core.persisted(ready.number, term=ready.term)
            self._checks.observe(self)
            for message in ready.after_persist:
                self._send(message)
        self._start_flush()

    def _apply(self, entries: list[Entry]) -> None:
        environment = self._environment
        for entry in entries:
            self.state = MachineState(entry.index, entry.term, chain(self.state.digest, entry))
            self._checks.applied(self, entry)
            proposal = self.proposals.pop(entry.index, None)
            if proposal is not None and proposal.term == entry.term:
                self._checks.acknowledged(self, proposal.name, entry)
        environment.trace(self.id, "applies", f"up to {self.state.index}")
        self.core.applied(self.state.index)

    # -- checkpoints and snapshots

    def _checkpoint(self) -> None:
        """Make the state machine durable, then compact the log below it."""
        faults = self._environment.faults
        self._after(self._rng.randint(1, faults.checkpoint_us), self._checkpoint)
        if self.state.index > self.disk.live.state.index:
            self._after(self._rng.randint(1, faults.flush_us), self._checkpoint_done, self.state)

    def _checkpoint_done(self, state: MachineState) -> None:
        self.disk.save_state(state)
        upto = Index(self.disk.durable.state.index - self._environment.faults.keep_entries)
        if upto > self.disk.live.log.snapshot().index:
            self._environment.trace(self.id, "compacts its log", f"up to {upto}")
            self._checks.count("compactions")
            self.disk.write(DiskWrite(compact=upto))

    def _stream_snapshot(self, to: NodeId) -> None:
        """Send the present state; report the result to the core after a delay."""
        environment = self._environment
        rng = self._rng
        state = self.state
        message = Message(
            MessageKind.SNAPSHOT,
            self.id,
            to,
            self.core.term,
            index=state.index,
            log_term=state.term,
        )
        environment.trace(self.id, "streams", f"snapshot {state.index} to {to}")
        self._checks.count("snapshots sent")
        receiver = self._peers[to]
        members = self.core.members_at(state.index)
        chunks = self.snapshot_chunks(state)
        ok = environment.network.send(self.id, to, receiver.take_snapshot, message, chunks, members)
        delay = rng.randint(1, 300 * MS)
        self._after(delay, self._snapshot_reported, to, ok and rng.random() < 0.95)

    def snapshot_chunks(self, state: MachineState) -> list[bytes]:
        digest = state.digest
        return [digest[at : at + CHUNK_BYTES] for at in range(0, len(digest), CHUNK_BYTES)]

    def _snapshot_reported(self, to: NodeId, ok: bool) -> None:  # noqa: FBT001 - an event
        self.core.report_snapshot(to, ok)

    def take_snapshot(self, message: Message, chunks: list[bytes], members: Members) -> None:
        if self.up:
            state = MachineState(message.index, message.log_term, b"".join(chunks))
            meta = SnapshotMeta(message.index, message.log_term)
            self._received[meta] = (state, members)
            self.deliver(message)

    def _install(self, meta: SnapshotMeta) -> None:
        """Write the snapshot; it counts once it is flushed."""
        state, members = self._received[meta]
        self.disk.write(DiskWrite(install=state, members=members))
        self._received.clear()
        delay = self._rng.randint(1, 50 * MS)
        self._after(delay, self._installed, meta, members, self.disk.written)

    def _installed(self, meta: SnapshotMeta, members: Members, position: int) -> None:
        self.disk.flush_to(position)
        self.state = self.disk.live.state
        self._environment.trace(self.id, "installs", f"snapshot {meta.index} term {meta.term}")
        self._checks.installed(self)
        self._checks.count("snapshots installed")
        self.core.snapshot_installed(meta.index, meta.term, members)


def _written(ready: Ready) -> str:
    parts = [f"#{ready.number}"]
    if ready.hard_state is not None:
        hard = ready.hard_state
        parts.append(f"term {hard.term} vote {hard.vote} commit {hard.commit}")
    if ready.entries:
        first, last = ready.entries[0], ready.entries[-1]
        parts.append(f"entries {first.index}..{last.index} of term {first.term}..{last.term}")
    return " ".join(parts)
