"""A simulated cluster under load: the nodes, clients, checks and faults of one seed.

Owns: the nodes of one run, its clients, and its two phases: with faults, then without.
May not touch: anything outside the simulation.
Spec: safety is checked at every step; progress only after the faults stopped, within a bound."""

from __future__ import annotations

from collections.abc import Callable

from chaos.sim.consensus.checks import SafetyChecks, Violation
from chaos.sim.consensus.environment import SimEnvironment
from chaos.sim.consensus.faults import Faults
from chaos.sim.consensus.nemesis import Nemesis
from chaos.sim.consensus.node import SimNode
from chaos.sim.consensus.round_loop import SimGroup
from chaos.sim.consensus.schedule import MS, rng_for
from raft.core.raft_core import STANDARD_PARTS, CoreParts, RaftCore
from raft.host.rounds import Rounds
from raft.types import NodeId, NotLeader

SETTLE_COMMITS = 3  # new commits that every member must reach after the faults
ACTIVE_US = 700 * MS


class SimCluster:
    """One run. To plant a bug, pass another class for one of the last three arguments."""

    def __init__(
        self,
        seed: int,
        faults: Faults,
        *,
        trace: list[str] | None,
        parts: CoreParts = STANDARD_PARTS,
        node_type: type[SimNode] = SimNode,
        rounds_type: type[Rounds[SimGroup]] = Rounds,
    ) -> None:
        self.environment = environment = SimEnvironment(seed, faults, trace=trace)
        self.nodes: dict[NodeId, SimNode] = {}
        self.checks = SafetyChecks(environment.begun_with, self.nodes)
        clocks = rng_for(seed, "clocks")
        skew = faults.clock_skew
        for node in environment.node_ids:
            self.nodes[node] = node_type(
                node,
                environment,
                self.checks,
                self.nodes,
                rng_for(seed, f"node {node}"),
                clock_rate=clocks.uniform(1 - skew, 1 + skew),
                parts=parts,
                rounds_type=rounds_type,
            )
        self._faults = faults
        self._schedule = environment.schedule
        self._clients = rng_for(seed, "clients")
        self._nemesis = Nemesis(environment, self.checks, self.nodes, rng_for(seed, "nemesis"))
        self._proposed = self._reads_asked = 0

    def run(self) -> None:
        """Raises Violation, or whatever a core raises."""
        for node in self.nodes.values():
            node.start()
        self._nemesis.start()
        self._propose()
        self._read()
        while self._schedule.now_us < self._faults.duration_us:
            self._schedule.step()
        self._settle()
        self.checks.final()

    def _settle(self) -> None:
        """End the faults; the cluster must make progress again."""
        self.environment.trace(None, "settle", "the faults are over")
        self.environment.end_faults()
        self._nemesis.stop()
        goal = len(self.checks.ledger) + SETTLE_COMMITS
        running = [node for node in self.nodes.values() if node.up]
        behind = goal - min(node.state.index for node in running)
        deadline = self._schedule.now_us + self._faults.settle_us(behind)
        while not self._reached(running, goal):
            if self._schedule.now_us > deadline:
                standing = {node.id: (node.core.role.value, node.state.index) for node in running}
                raise Violation(f"no progress to {goal} after the faults: {standing}")
            self._schedule.step()

    def _reached(self, running: list[SimNode], goal: int) -> bool:
        """Whether all members, by the newest leader's configuration, have applied the goal, and no
        membership change is unfinished."""
        leaders = [node for node in running if node.leads]
        if not leaders:
            return False
        members = max(leaders, key=lambda node: node.core.term).core.members
        return not members.joint and all(
            node.state.index >= goal for node in running if node.id in members.everyone()
        )

    # -- clients

    def _leaders(self) -> list[SimNode]:
        """The nodes that believe they are the leader, the newest one last."""
        leaders = [node for node in self.nodes.values() if node.leads]
        return sorted(leaders, key=lambda node: node.core.term)

    def _resting(self) -> bool:
        rest_us = self._faults.rest_us
        if not rest_us or self.environment.calm:
            return False
        return self._schedule.now_us % (rest_us + ACTIVE_US) < rest_us

    def _propose(self) -> None:
        rng = self._clients
        self._schedule.after(rng.randrange(1, 2 * self._faults.proposal_us), self._propose)
        leaders = self._leaders()
        if leaders and not self._resting():
            node = leaders[-1] if rng.random() < 0.5 else rng.choice(leaders)
            node.ask(self._proposals(rng.randint(1, self._faults.burst_max)))

    def _proposals(self, count: int) -> Callable[[RaftCore], None]:
        def propose(core: RaftCore) -> None:
            room = self._faults.backlog_max - (core.last_index - core.commit)
            for _ in range(min(count, room)):
                self._proposed += 1
                padding = b"." * self._clients.randint(0, self._faults.size_max)
                try:
                    self.nodes[core.node].propose(b"p%d" % self._proposed + padding)
                except NotLeader:
                    return  # definite: this proposal must never appear

        return propose

    def _read(self) -> None:
        rng = self._clients
        self._schedule.after(rng.randrange(1, 2 * self._faults.read_us), self._read)
        leaders = self._leaders()
        if leaders and not self._resting():
            self._reads_asked += 1
            context, lease = self._reads_asked, rng.random() < self._faults.lease_chance
            node = leaders[0] if rng.random() < 0.5 else rng.choice(leaders)
            node.ask(lambda _: node.read(context, lease=lease))
