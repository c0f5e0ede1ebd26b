"""A simulated cluster under load: nodes, network, clients, judge and nemesis of one seed.

Owns: the parts of one run and its two phases, faults first, then peace and progress.
May not touch: anything real.
Spec: safety is judged at every step; liveness only after the faults stopped, within a bound."""

from __future__ import annotations

from collections.abc import Callable

from chaos.sim.checks import Checks, Violation
from chaos.sim.faults import Faults
from chaos.sim.nemesis import Nemesis
from chaos.sim.network import Network
from chaos.sim.node import SimNode
from chaos.sim.schedule import MS, EventQueue, dice
from raft.core.messages import Message
from raft.core.raft_core import RaftCore
from raft.types import Members, NodeId, NotLeader

SETTLE_COMMITS = 3


class Cluster:
    def __init__(self, seed: int, faults: Faults, *, trace: list[str] | None) -> None:
        self.faults = faults
        self.schedule = EventQueue()
        self.network = Network(self.schedule, faults, dice(seed, "network"))
        self.calm = False
        self.tracing = trace is not None
        self._trace = trace
        self.voters = tuple(NodeId(n) for n in range(1, faults.voters + 1))
        self.learners = tuple(
            NodeId(n) for n in range(faults.voters + 1, faults.voters + faults.learners + 1)
        )
        first_spare = faults.voters + faults.learners + 1
        spares = tuple(NodeId(n) for n in range(first_spare, first_spare + faults.spares))
        self.begun_with = Members(self.voters, self.learners)
        self.checks = Checks(self)
        clocks = dice(seed, "clocks")
        skew = faults.clock_skew
        self.nodes = {
            node: SimNode(
                self, node, dice(seed, f"node {node}"), rate=clocks.uniform(1 - skew, 1 + skew)
            )
            for node in (*self.voters, *self.learners, *spares)
        }
        self._clients = dice(seed, "clients")
        self._nemesis = Nemesis(self, dice(seed, "nemesis"))
        self._proposed = self._asked = 0

    def run(self) -> None:
        """Raises Violation, or whatever a core raises."""
        for node in self.nodes.values():
            node.start()
        self._nemesis.start()
        self._propose()
        self._read()
        while self.schedule.now_us < self.faults.duration_us:
            self.schedule.step()
        self._settle()
        self.checks.final()

    def _settle(self) -> None:
        self.trace(None, "peace", "faults are over")
        self.calm = self.network.calm = True
        self._nemesis.stop()
        goal = len(self.checks.ledger) + SETTLE_COMMITS
        running = [node for node in self.nodes.values() if node.up]
        behind = goal - min(node.state.index for node in running)
        deadline = self.schedule.now_us + self.faults.settle_us(behind)
        while not self._level(running, goal):
            if self.schedule.now_us > deadline:
                standing = {node.id: (node.core.role.value, node.state.index) for node in running}
                raise Violation(f"no progress to {goal} in peace: {standing}")
            self.schedule.step()

    def _level(self, running: list[SimNode], goal: int) -> bool:
        """Whether the members, as the newest leader names them, have all come to the goal, and
        no change of members hangs."""
        leaders = [node for node in running if node.leads]
        if not leaders:
            return False
        members = max(leaders, key=lambda node: node.core.term).core.members
        return not members.joint and all(
            node.state.index >= goal for node in running if node.id in members.everyone()
        )

    # -- clients

    def _propose(self) -> None:
        luck = self._clients
        self.schedule.after(luck.randrange(1, 2 * self.faults.proposal_us), self._propose)
        leaders = [node for node in self.nodes.values() if node.leads]
        if leaders:
            luck.choice(leaders).ask(self._proposals(luck.randint(1, self.faults.burst_max)))

    def _proposals(self, count: int) -> Callable[[RaftCore], None]:
        def propose(core: RaftCore) -> None:
            room = self.faults.backlog_max - (core.last_index - core.commit)
            for _ in range(min(count, room)):
                self._proposed += 1
                padding = b"." * self._clients.randint(0, self.faults.size_max)
                try:
                    self.nodes[core.node].propose(b"p%d" % self._proposed + padding)
                except NotLeader:
                    return  # definite: the name is never seen again

        return propose

    def _read(self) -> None:
        luck = self._clients
        self.schedule.after(luck.randrange(1, 2 * self.faults.read_us), self._read)
        leaders = [node for node in self.nodes.values() if node.leads]
        if leaders:
            self._asked += 1
            context, lease = self._asked, luck.random() < self.faults.lease_chance
            node = luck.choice(leaders)
            node.ask(lambda _: node.read(context, lease=lease))

    # -- between the nodes

    def send(self, sender: SimNode, message: Message) -> None:
        self.checks.sent(sender, message)
        receiver = self.nodes[message.to]
        if not self.network.send(sender.id, message.to, receiver.deliver, message):
            self.trace(sender.id, "loses", message)

    def trace(self, node: NodeId | None, verb: str, what: object) -> None:
        if self._trace is None:
            return
        who = "--" if node is None else f"n{node}"
        text = _message_text(what) if isinstance(what, Message) else str(what)
        self._trace.append(f"{self.schedule.now_us / (1000 * MS):9.4f} {who} {verb} {text}")


def _message_text(message: Message) -> str:
    parts = [f"{message.kind.name} {message.sender}->{message.to} term {message.term}"]
    if message.index or message.log_term:
        parts.append(f"at ({message.index}, {message.log_term})")
    if message.entries:
        parts.append(f"entries {message.entries[0].index}..{message.entries[-1].index}")
    if message.commit:
        parts.append(f"commit {message.commit}")
    if message.reject:
        parts.append(f"REJECT hint ({message.hint_index}, {message.hint_term})")
    return " ".join(parts)
