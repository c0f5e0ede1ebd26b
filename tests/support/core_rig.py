"""A group of cores that tests drive by hand: the test delivers messages and flushes disks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from raft.core.log import MemoryReader, RaftLog
from raft.core.messages import Entry, EntryKind, Message, MessageKind
from raft.core.raft_core import CoreConfig, RaftCore, Ready
from raft.core.ready import ReadState
from raft.types import NO_NODE, HardState, Index, NodeId, Role, SnapshotMeta, Term

A, B, C, D, E = (NodeId(n) for n in range(1, 6))
SEND_ALL: Callable[[Message], bool] = lambda message: True  # noqa: E731 - a named default


def entry(index: int, term: int, data: bytes = b"", kind: EntryKind = EntryKind.NORMAL) -> Entry:
    return Entry(Index(index), Term(term), data, kind)


def log_of(*terms: int) -> list[Entry]:
    """Entries from index 1 on, with these terms."""
    return [entry(index, term, b"%d" % index) for index, term in enumerate(terms, 1)]


def message(kind: MessageKind, sender: int, to: int, term: int, **fields: object) -> Message:
    return Message(kind, NodeId(sender), NodeId(to), Term(term), **fields)  # type: ignore[arg-type]


def core_of(  # one core with a stored log, outside any group
    node: NodeId = A,
    voters: Sequence[NodeId] = (A, B, C),
    *,
    terms: Sequence[int] = (),
    term: int = 0,
    vote: NodeId = NO_NODE,
    commit: int = 0,
    learners: Sequence[NodeId] = (),
    config: CoreConfig | None = None,
    draw: Callable[[int, int], int] = lambda low, high: low,
) -> RaftCore:
    reader = MemoryReader()
    if terms:
        reader.write(log_of(*terms))
    return RaftCore(
        node=node,
        voters=voters,
        learners=learners,
        log=RaftLog(reader),
        hard_state=HardState(Term(term), vote, Index(commit)),
        config=config or CoreConfig(),
        draw=draw,
        restarted=False,
    )


def drain(core: RaftCore) -> Ready:
    """Take the Ready, flush it, and return it with all messages in `messages`."""
    ready = core.ready()
    core.persisted(ready.number, term=ready.term)
    ready.messages += ready.after_persist
    return ready


def elect(core: RaftCore, *supporters: NodeId) -> Ready:
    """Make a single core leader by giving it (pre-)votes. Returns its first Ready as leader."""
    core.campaign()
    drain(core)
    for voter in supporters:
        if core.role is Role.PRE_CANDIDATE:
            core.step(message(MessageKind.PRE_VOTE_REPLY, voter, core.node, core.term + 1))
    drain(core)
    for voter in supporters:
        core.step(message(MessageKind.VOTE_REPLY, voter, core.node, core.term))
    assert core.role is Role.LEADER
    return core.ready()


def terms_of(core: RaftCore) -> list[int]:
    return [core.log.term(Index(i)) or 0 for i in range(1, core.last_index + 1)]


@dataclass
class Host:
    core: RaftCore
    reader: MemoryReader
    hard_state: HardState = field(default_factory=HardState)
    applied: list[Entry] = field(default_factory=list)
    flushes: bool = True  # False: Readies collect in `unflushed`
    unflushed: list[Ready] = field(default_factory=list)
    snapshot_wanted: list[NodeId] = field(default_factory=list)


class Group:
    """Cores connected by one queue. settle() delivers messages until none is left."""

    def __init__(
        self,
        voters: int = 3,
        *,
        learners: int = 0,
        config: CoreConfig | None = None,
        logs: dict[NodeId, Sequence[int]] | None = None,
        terms: dict[NodeId, int] | None = None,
    ) -> None:
        self.config = config or CoreConfig()
        self.voters = [NodeId(n) for n in range(1, voters + 1)]
        self.learners = [NodeId(n) for n in range(voters + 1, voters + learners + 1)]
        self.hosts: dict[NodeId, Host] = {}
        self.queue: list[Message] = []
        self.sent_snapshots: dict[SnapshotMeta, SnapshotMeta] = {}
        self.passes: Callable[[Message], bool] = SEND_ALL
        self.on_reads: Callable[[NodeId, list[ReadState]], None] = lambda node, reads: None
        for node in (*self.voters, *self.learners):
            reader = MemoryReader()
            stored = log_of(*(logs or {}).get(node, ()))
            if stored:
                reader.write(stored)
            self.hosts[node] = self._host(node, reader, HardState(Term((terms or {}).get(node, 0))))

    def _host(
        self,
        node: NodeId,
        reader: MemoryReader,
        hard_state: HardState,
        *,
        restarted: bool = False,
    ) -> Host:
        core = RaftCore(
            node=node,
            voters=self.voters,
            learners=self.learners,
            log=RaftLog(reader),
            hard_state=hard_state,
            config=self.config,
            draw=lambda low, high: low + node % (high - low),
            restarted=restarted,
        )
        return Host(core, reader, hard_state)

    def add(self, node: NodeId) -> None:
        """Add a node that may join the group."""
        self.hosts[node] = self._host(node, MemoryReader(), HardState())

    def lose_log(self, node: NodeId) -> None:
        """Restart without the log: only term and vote are left."""
        hard_state = self.hosts[node].hard_state.after_loss()
        self.hosts[node] = self._host(node, MemoryReader(), hard_state)

    def __getitem__(self, node: NodeId) -> RaftCore:
        return self.hosts[node].core

    def restart(self, node: NodeId) -> None:
        """Restart with everything that was written."""
        old = self.hosts[node]
        self.hosts[node] = self._host(node, old.reader, old.hard_state, restarted=True)

    def round(self, node: NodeId) -> bool:
        host = self.hosts[node]
        if not host.core.has_ready():
            return False
        ready = host.core.ready()
        if ready.hard_state is not None:
            host.hard_state = ready.hard_state
        if ready.entries:
            host.reader.write(ready.entries)
        if ready.snapshot is not None:
            meta = self.sent_snapshots[ready.snapshot]
            host.reader.install(meta)
            host.core.snapshot_installed(meta.index, meta.term, meta.members)
        self.queue += ready.messages
        host.snapshot_wanted += ready.snapshot_to
        host.applied += ready.committed
        if ready.reads:
            self.on_reads(node, ready.reads)
        if ready.committed:
            host.core.applied(ready.committed[-1].index)
        host.unflushed.append(ready)
        if host.flushes:
            self.flush(node)
        return True

    def flush(self, node: NodeId) -> None:
        host = self.hosts[node]
        readies, host.unflushed = host.unflushed, []
        for ready in readies:
            host.core.persisted(ready.number, term=ready.term)
            self.queue += ready.after_persist

    def settle(self, passes: int = 1 << 20) -> None:
        """Take Readies and deliver messages until nothing is left, or `passes` times."""
        moving = True
        while moving and passes:
            passes -= 1
            moving = any([self.round(node) for node in self.hosts])
            queue, self.queue = self.queue, []
            for queued in queue:
                if self.passes(queued):
                    moving = True
                    self[queued.to].step(queued)

    def tick(self, count: int = 1, *nodes: NodeId) -> None:
        for _ in range(count):
            for node in nodes or tuple(self.hosts):
                self[node].tick()
            self.settle()

    def elect(self, node: NodeId) -> RaftCore:
        self[node].campaign()
        self.settle()
        assert self[node].role is Role.LEADER, self[node].status()
        return self[node]

    def cut_off(self, *nodes: NodeId) -> None:
        """Drop all messages to and from these nodes."""
        self.passes = lambda m: m.sender not in nodes and m.to not in nodes

    def heal(self) -> None:
        self.passes = SEND_ALL

    def send_snapshot(self, sender: NodeId, to: NodeId) -> SnapshotMeta:
        """Send a snapshot as the host does for Ready.snapshot_to."""
        core = self[sender]
        index = core.applied_index
        meta = SnapshotMeta(index, core.log.term(index) or Term(0), core.members_at(index))
        self.sent_snapshots[meta] = meta
        self.queue.append(
            message(MessageKind.SNAPSHOT, sender, to, core.term, index=index, log_term=meta.term)
        )
        return meta
