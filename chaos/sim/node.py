"""One simulated node: a real RaftCore inside a host made of events.

Owns: the core of one node, its machine, its rounds and flushes, its crashes and pauses, what it
does about a log that is lost or damaged, its watch over sleeping groups.
May not touch: other nodes, except through the network.
Spec: raft.ready.Ready (the order of a round); at most one flush at a time, what is written
meanwhile goes into the next, as the real host does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING

from chaos.sim.disk import EMPTY, Image, MachineState, SimDisk, Write
from chaos.sim.schedule import MS
from raft.core.log import RaftLog
from raft.core.messages import Entry, Message, MessageKind
from raft.core.raft_core import RaftCore
from raft.core.ready import Ready
from raft.types import Index, Members, NodeId, NotLeader, Role, SnapshotMeta, Term

if TYPE_CHECKING:
    from chaos.sim.cluster import Cluster

TICK_US = 50 * MS
CHUNK_BYTES = 3  # of a snapshot, which is a digest of eight bytes
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
    """`life` counts restarts: an event planned in an earlier life finds nobody."""

    def __init__(self, cluster: Cluster, node: NodeId, luck: Random, *, rate: float) -> None:
        self.id = node
        self.disk = SimDisk()
        self.state = EMPTY
        self.life = 0
        self.slow_disk = False
        self.stalled_until_us = 0  # the disk finishes nothing before
        self.forgotten: Image | None = None  # what it held before it lost its log
        self.waiting: dict[Index, SimProposal] = {}  # proposed here in this life, not yet applied
        self._cluster = cluster
        self._luck = luck
        self._tick_us = int(TICK_US * rate)
        self._core: RaftCore | None = None
        self._paused = False
        self._stalled: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._round_planned = False
        self._flushing: list[Ready] = []
        self._to_flush: list[Ready] = []
        self._received: dict[SnapshotMeta, tuple[MachineState, Members]] = {}
        self._ticked_us = 0
        self._idle_ticks = 0
        self._heard_us: dict[NodeId, int] = {}
        self._reads: dict[int, tuple[int, Index]] = {}  # context: committed then, index to reach

    # -- life and death

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
        """Whether it lost its log and has not caught up, as its disk says."""
        return self.disk.durable.hard_state.lives % 2 == 1

    def _give_up_log(self, why: str) -> None:
        self.forgotten = self.disk.durable
        self.disk.lose_log()
        self._cluster.checks.count("logs given up")
        self._cluster.trace(self.id, "gives up its log", why)

    def start(self) -> None:
        cluster = self._cluster
        damaged = self.disk.durable.damaged
        if damaged is not None and "keep_damaged" not in cluster.faults.core.bugs:
            self._give_up_log(f"entry {damaged} is damaged")
        image = self.disk.live
        self.life += 1
        self.state = image.state
        self._core = RaftCore(
            node=self.id,
            voters=cluster.voters,
            learners=cluster.learners,
            log=RaftLog(image.log, tail_bytes_max=self._luck.choice((0, 500, 1 << 20))),
            hard_state=image.hard_state,
            config=cluster.faults.core,
            draw=self._luck.randrange,
            applied=self.state.index,
        )
        cluster.checks.started(self)
        self._ticked_us = cluster.schedule.now_us
        self._heard_us.clear()
        self._plan(self._luck.randrange(self._tick_us), self._tick)
        self._plan(self._luck.randrange(cluster.faults.checkpoint_us), self._checkpoint)

    def crash(self) -> int:
        """Lose memory and what was not flushed. Returns the writes lost."""
        self._core = None
        self._paused = False
        self._round_planned = False
        self._stalled.clear()
        self._flushing.clear()
        self._to_flush.clear()
        self._received.clear()
        self.waiting.clear()
        self._reads.clear()
        lost = self.disk.crash(self._luck, harsh=self._cluster.faults.harsh_disk)
        if self._cluster.faults.memory_only:
            self._give_up_log("it was in memory only")
        return lost

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        """Go on where it stopped: messages that came meanwhile are read in a burst."""
        self._paused = False
        stalled, self._stalled = self._stalled, []
        for action, arguments in stalled:
            self._run(self.life, action, arguments)

    def _plan(self, delay_us: int, action: Callable[..., None], *arguments: object) -> None:
        self._cluster.schedule.after(delay_us, self._run, self.life, action, arguments)

    def _run(self, life: int, action: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if life != self.life or self._core is None:
            return
        if self._paused:
            self._stalled.append((action, arguments))
            return
        action(*arguments)
        if self._core is not None:
            self._cluster.checks.observe(self)
            if not self._round_planned and self._core.has_ready():
                self._round_planned = True
                self._plan(self._luck.randrange(1, 1500), self._round)

    # -- inputs

    def deliver(self, message: Message) -> None:
        self._run(self.life, self._step, (message,))

    def ask(self, action: Callable[[RaftCore], None]) -> None:
        """Let someone outside use the core, if this node runs."""
        self._run(self.life, self._ask, (action,))

    def _ask(self, action: Callable[[RaftCore], None]) -> None:
        action(self.core)

    def _step(self, message: Message) -> None:
        self._cluster.trace(self.id, "takes", message)
        self._cluster.checks.takes(self, message)
        self.core.step(message)

    def _tick(self) -> None:
        self._plan(self._tick_us, self._tick)
        core = self.core
        now = self._cluster.schedule.now_us
        if now - self._ticked_us > 2 * self._tick_us:
            core.end_lease()  # we stood still: our ticks do not tell how long
        self._ticked_us = now
        if not core.asleep:
            core.tick()
        if self._cluster.faults.sleepy:
            self._watch(core, now)

    def _watch(self, core: RaftCore, now: int) -> None:
        """Idle groups sleep; nodes tell each other that they are there, and a node that falls
        silent wakes the groups it belongs to."""
        cluster = self._cluster
        for other in cluster.nodes.values():
            if other is not self:
                cluster.network.send(self.id, other.id, other.hear, self.id)
        horizon = now - cluster.faults.core.election_ticks * self._tick_us
        there = {node for node, heard in self._heard_us.items() if heard >= horizon}
        if core.asleep:
            if not there.issuperset(n for n in core.members.everyone() if n != self.id):
                core.wake()
                if core.leader not in there:
                    core.leader_lost()
        elif cluster.calm or not core.may_sleep(there):
            self._idle_ticks = 0
        else:
            self._idle_ticks += 1
            if self._idle_ticks > SLEEP_AFTER_TICKS:
                core.sleep()
                cluster.checks.count("sleeps")
                cluster.trace(self.id, "sends to sleep", f"at {core.last_index}")

    def hear(self, node: NodeId) -> None:
        """Another node lives."""
        self._run(self.life, self._hear, (node,))

    def _hear(self, node: NodeId) -> None:
        self._heard_us[node] = self._cluster.schedule.now_us

    def read(self, context: int, *, lease: bool) -> None:
        """A client wants to see all that is committed by now."""
        punctual = self._cluster.schedule.now_us - self._ticked_us <= 2 * self._tick_us
        try:
            self.core.read_index(context, lease=lease and punctual)
        except NotLeader:
            return
        self._reads[context] = (len(self._cluster.checks.ledger), Index(-1))

    def _serve_reads(self) -> None:
        for context, (committed, index) in list(self._reads.items()):
            if 0 <= index <= self.state.index:
                del self._reads[context]
                self._cluster.checks.read(self, committed)

    def propose(self, name: bytes) -> None:
        core = self.core
        index = core.propose(name)
        self.waiting[index] = SimProposal(name, core.term)
        self._cluster.trace(self.id, "proposes", f"{name[:12]!r} at {index} term {core.term}")

    # -- rounds

    def _round(self) -> None:
        self._round_planned = False
        cluster = self._cluster
        ready = self.core.ready()
        if ready.hard_state is not None or ready.entries:
            cluster.checks.wrote(self, ready.entries)
            self.disk.write(Write(ready.hard_state, ready.entries))
            if cluster.tracing:
                cluster.trace(self.id, "writes", _written(ready))
        if ready.snapshot is not None:
            self._install(ready.snapshot)
        for message in ready.messages:
            cluster.send(self, message)
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
        faults, luck = self._cluster.faults, self._luck
        delay = luck.randint(1, faults.flush_us)
        if self.slow_disk or (not self._cluster.calm and luck.random() < faults.slow_flush):
            delay += luck.randrange(faults.slow_flush_us)
        delay += max(0, self.stalled_until_us - self._cluster.schedule.now_us)
        self._plan(delay, self._flush_done, self.disk.written)

    def _flush_done(self, position: int) -> None:
        self.disk.flush_to(position)
        readies = self._flushing
        self._flushing = []
        if not self.recovering:
            self.forgotten = None
        for ready in readies:
            self.core.persisted(ready.number, term=ready.term)
            self._cluster.checks.observe(self)
            for message in ready.after_persist:
                self._cluster.send(self, message)
        self._start_flush()

    def _apply(self, entries: list[Entry]) -> None:
        cluster = self._cluster
        for entry in entries:
            self.state = MachineState(entry.index, entry.term, chain(self.state.digest, entry))
            cluster.checks.applied(self, entry)
            proposal = self.waiting.pop(entry.index, None)
            if proposal is not None and proposal.term == entry.term:
                cluster.checks.acknowledged(self, proposal.name, entry)
        cluster.trace(self.id, "applies", f"up to {self.state.index}")
        self.core.applied(self.state.index)

    # -- checkpoints and snapshots

    def _checkpoint(self) -> None:
        """Make the machine durable after a while, then cut the log below."""
        faults = self._cluster.faults
        self._plan(self._luck.randint(1, faults.checkpoint_us), self._checkpoint)
        if self.state.index > self.disk.live.state.index:
            self._plan(self._luck.randint(1, faults.flush_us), self._checkpoint_done, self.state)

    def _checkpoint_done(self, state: MachineState) -> None:
        self.disk.save_state(state)
        upto = Index(self.disk.durable.state.index - self._cluster.faults.keep_entries)
        if upto > self.disk.live.log.snapshot().index:
            self._cluster.trace(self.id, "cuts log", f"up to {upto}")
            self._cluster.checks.count("compactions")
            self.disk.write(Write(compact=upto))

    def _stream_snapshot(self, to: NodeId) -> None:
        """Send the machine as it is; tell the core how it went after a while."""
        cluster = self._cluster
        luck = self._luck
        state = self.state
        message = Message(
            MessageKind.SNAPSHOT,
            self.id,
            to,
            self.core.term,
            index=state.index,
            log_term=state.term,
        )
        cluster.trace(self.id, "streams", f"snapshot {state.index} to {to}")
        cluster.checks.count("snapshots sent")
        receiver = cluster.nodes[to]
        members = self.core.members_at(state.index)
        chunks = [
            state.digest[start : start + CHUNK_BYTES]
            for start in range(0, len(state.digest), CHUNK_BYTES)
        ]
        if "lose_snapshot_tail" in cluster.faults.core.bugs and luck.random() < 0.3:
            del chunks[-1:]
        ok = cluster.network.send(self.id, to, receiver.take_snapshot, message, chunks, members)
        delay = luck.randint(1, 300 * MS)
        self._plan(delay, self._snapshot_reported, to, ok and luck.random() < 0.95)

    def _snapshot_reported(self, to: NodeId, ok: bool) -> None:  # noqa: FBT001 - an event
        self.core.report_snapshot(to, ok)

    def take_snapshot(self, message: Message, chunks: list[bytes], members: Members) -> None:
        if self.up:
            state = MachineState(message.index, message.log_term, b"".join(chunks))
            meta = SnapshotMeta(message.index, message.log_term)
            self._received[meta] = (state, members)
            self.deliver(message)

    def _install(self, meta: SnapshotMeta) -> None:
        """Write it like anything else; it counts when it is flushed."""
        state, members = self._received[meta]
        self.disk.write(Write(install=state, members=members))
        self._received.clear()
        delay = self._luck.randint(1, 50 * MS)
        self._plan(delay, self._installed, meta, members, self.disk.written)

    def _installed(self, meta: SnapshotMeta, members: Members, position: int) -> None:
        self.disk.flush_to(position)
        self.state = self.disk.live.state
        self._cluster.trace(self.id, "installs", f"snapshot {meta.index} term {meta.term}")
        self._cluster.checks.installed(self)
        self._cluster.checks.count("snapshots installed")
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
