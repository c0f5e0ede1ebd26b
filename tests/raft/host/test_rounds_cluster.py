"""Rounds with real cores over a simulated disk: crashes at any point lose nothing committed."""

from __future__ import annotations

from random import Random

import pytest

from raft.core.log import MemoryReader, RaftLog
from raft.core.messages import Entry, Message
from raft.core.raft_core import RaftCore
from raft.core.ready import CoreConfig
from raft.host.rounds import Effects, PendingBatch, Rounds
from raft.types import GroupId, HardState, Index, NodeId, NotLeader, Role

VOTERS = [NodeId(n) for n in (1, 2, 3)]
GROUP = GroupId(1)
STEPS = 4000


class StoredLog(MemoryReader):
    def appended(self, entries: object) -> None:
        raise AssertionError("the group is persistent")


class SimulatedGroup:
    id = GROUP
    persistent = True
    relaxed = False
    stopped: str | None = None

    def __init__(self, core: RaftCore, log: StoredLog) -> None:
        self.core = core
        self.log = log
        self.promised: HardState | None = None
        self.unflushed = 0


class SimulatedNode:
    """Writes are visible at once; a crash loses what was not flushed."""

    def __init__(self, node: NodeId, cluster: SimulatedCluster) -> None:
        self.node = node
        self._cluster = cluster
        self._hard_state = HardState()
        self._entries: list[Entry] = []  # durable
        self.start()

    def start(self) -> None:
        log = StoredLog()
        if self._entries:
            log.write(self._entries)
        core = RaftCore(
            node=self.node,
            voters=VOTERS,
            learners=(),
            log=RaftLog(log),
            hard_state=self._hard_state,
            config=CoreConfig(),
            draw=self._cluster.dice.randrange,
            applied=Index(0),
        )
        self.group = SimulatedGroup(core, log)
        self.rounds: Rounds[SimulatedGroup] = Rounds()
        self.writing: PendingBatch[SimulatedGroup] | None = None
        self.flushing: tuple[int, int] | None = None  # batch number, writes that it covers
        self._written: list[tuple[HardState | None, list[Entry]]] = []

    @property
    def core(self) -> RaftCore:
        return self.group.core

    def round(self) -> None:
        self.rounds.mark(self.group)
        self._carry_out(self.rounds.begin())

    def write_done(self) -> None:
        assert self.writing is not None
        batch, self.writing = self.writing, None
        entries = batch.changes.entries.get(GROUP, [])
        if entries:
            self.group.log.write(entries)
        self._written.append((batch.changes.hard_states.get(GROUP), entries))
        self._carry_out(self.rounds.written(batch.number))

    def write_refused(self) -> None:
        assert self.writing is not None
        self.rounds.refused(self.writing.number)
        self.writing = None
        self._carry_out(self.rounds.retry_write())

    def flush_done(self) -> None:
        assert self.flushing is not None
        (number, count), self.flushing = self.flushing, None
        for hard_state, entries in self._written[:count]:
            if hard_state is not None:
                self._hard_state = hard_state
            if entries:
                del self._entries[entries[0].index - 1 :]
                self._entries.extend(entries)
        del self._written[:count]
        self._carry_out(self.rounds.flushed(number))

    def _carry_out(self, effects: Effects[SimulatedGroup]) -> None:
        assert not effects.failed
        for _, messages in effects.send:
            self._cluster.network.extend(messages)
        if effects.flush is not None:
            assert self.flushing is None
            self.flushing = (effects.flush, len(self._written))
        if effects.write is not None:
            assert self.writing is None
            assert self.flushing is None, "no write beside a flush"
            self.writing = effects.write
        for group, ready in effects.apply:
            if ready.committed:
                self._cluster.check_committed(ready.committed)
                group.core.applied(ready.committed[-1].index)
            self.rounds.applied(group, ready)


class SimulatedCluster:
    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.network: list[Message] = []
        self.committed: dict[Index, Entry] = {}
        self._leaders: dict[int, NodeId] = {}
        self._proposals = 0
        self.nodes = {node: SimulatedNode(node, self) for node in VOTERS}

    def check_committed(self, entries: list[Entry]) -> None:
        for entry in entries:
            known = self.committed.setdefault(entry.index, entry)
            assert known == entry, "two different entries were committed at one index"

    def step(self, *, faults: bool) -> None:
        dice = self.dice
        node = self.nodes[dice.choice(VOTERS)]
        draw = dice.random()
        if draw < 0.05:
            node.core.tick()
        elif draw < 0.10:
            self._propose(node)
        elif draw < 0.11 and faults and len(self.committed) > 2:
            node.start()
        elif draw < 0.40 and self.network:
            message = self.network.pop(dice.randrange(len(self.network)))
            if not faults or dice.random() > 0.05:
                self.nodes[message.to].core.step(message)
        elif draw < 0.60 and node.writing is not None:
            if faults and dice.random() < 0.1:
                node.write_refused()
            else:
                node.write_done()
        elif draw < 0.70 and node.flushing is not None:
            node.flush_done()
        elif node.core.has_ready() or node.rounds.marked:
            node.round()
        if node.core.role is Role.LEADER:
            leader = self._leaders.setdefault(node.core.term, node.node)
            assert leader == node.node, "two leaders in one term"

    def _propose(self, node: SimulatedNode) -> None:
        try:
            node.core.propose(b"%d" % self._proposals)
        except NotLeader:
            return
        self._proposals += 1


@pytest.mark.parametrize("seed", range(20))
def test_crashes_between_write_and_flush_lose_nothing_committed(seed: int) -> None:
    cluster = SimulatedCluster(seed)
    for _ in range(STEPS):
        cluster.step(faults=True)
    before = len(cluster.committed)
    for _ in range(STEPS):
        cluster.step(faults=False)
    assert len(cluster.committed) > before + 10, "a healed cluster makes progress"
