"""The nemesis: faults of nodes and network, one after the other, and their end.

Owns: which faults are in force, and how each ends.
May not touch: clients, the broker's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from chaos.sim.broker.plan import Plan
from chaos.sim.world.links import Fabric
from chaos.sim.world.node import BrokerNode
from chaos.sim.world.virtual_time import MS, NS, WorldTime


class BrokerNemesis:
    def __init__(
        self,
        plan: Plan,
        *,
        world: WorldTime,
        nodes: Sequence[BrokerNode],
        fabric: Fabric,
        rng: Random,
        tell: Callable[[str, str], None],
    ) -> None:
        self._world = world
        self._nodes = nodes
        self._fabric = fabric
        self._plan = plan
        self._rng = rng
        self._tell = tell
        self._over = False

    def start(self) -> None:
        if self._plan.faults:
            self._world.after(NS, self._next)

    def _next(self) -> None:
        if self._over:
            return
        gap = self._plan.fault_gap_ns
        self._world.after(self._rng.randint(gap // 4, 2 * gap), self._next)
        kind = self._rng.choice(self._plan.faults)
        node = self._rng.choice(self._nodes)
        lasts = self._rng.choice((50 * MS, 500 * MS, 2 * NS, 8 * NS))
        if kind in ("kill", "power"):
            if node.up:
                lost = node.kill(power=kind == "power")
                self._tell(node.name, f"{kind}: {lost} writes lost, for {lasts / NS} s")
                self._world.after(lasts, self._restart, node)
        elif kind == "pause":
            if node.up:
                self._tell(node.name, f"pause: for {lasts / NS} s")
                node.pause()
                self._world.after(lasts, self._resume, node, node.starts)
        else:
            self._partition(kind, node, lasts)

    def _partition(self, kind: str, node: BrokerNode, lasts: int) -> None:
        others = [other for other in self._nodes if other is not node]
        if kind == "cut":
            others = [self._rng.choice(others)]
        pairs = set()
        for other in others:
            pairs.add((node.name, other.name))
            if kind != "one-way":
                pairs.add((other.name, node.name))
        self._fabric.cut(pairs)
        who = ", ".join(other.name for other in others)
        self._tell(node.name, f"{kind}: from {who}, for {lasts / NS} s")
        self._world.after(lasts, self._fabric.cut, set())

    def _restart(self, node: BrokerNode) -> None:
        if not node.up:
            self._tell(node.name, "starts")
            node.start()

    def _resume(self, node: BrokerNode, starts: int) -> None:
        if node.up and node.starts == starts:
            self._tell(node.name, "resumes")
            node.resume()

    def heal(self) -> None:
        """No more faults: everything runs and reaches everything."""
        self._over = True
        self._tell("--", "the faults are over")
        self._fabric.cut(set())
        for node in self._nodes:
            self._restart(node)
            node.resume()
