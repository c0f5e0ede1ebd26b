"""The one who breaks things: crashes, cuts, pauses, transfers, at random times.

Owns: which fault comes next. Every fault it makes, it or heal_all() ends.
May not touch: cores, except through what a host may ask of them.
Spec: faults.Faults.weights."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from chaos.sim.schedule import MS, SECOND
from raft.core.quorum import majority
from raft.core.raft_core import RaftCore
from raft.types import ChangeRefused, NotLeader, Role

if TYPE_CHECKING:
    from chaos.sim.cluster import Cluster
    from chaos.sim.node import SimNode


class Nemesis:
    def __init__(self, cluster: Cluster, luck: Random) -> None:
        self._cluster = cluster
        self._luck = luck
        self._active = True
        weights = cluster.faults.weights
        self._actions: list[Callable[[], None]] = [getattr(self, f"_{name}") for name in weights]
        self._weights = list(weights.values())

    def start(self) -> None:
        self._plan_turn()

    def _plan_turn(self) -> None:
        mean = self._cluster.faults.nemesis_us
        self._cluster.schedule.after(self._luck.randrange(1, 2 * mean), self._turn)

    def _turn(self) -> None:
        if self._active:
            self._luck.choices(self._actions, self._weights)[0]()
            self._plan_turn()

    def stop(self) -> None:
        """Faults are over: everything heals, perhaps except a minority that stays down."""
        self._active = False
        cluster = self._cluster
        cluster.network.heal()
        nodes = list(cluster.nodes.values())
        down = [node for node in nodes if not node.up]
        if cluster.faults.spare_minority and self._nothing_lost():
            spared = len(cluster.voters) - majority(len(cluster.voters))
            voters_down = [node for node in down if node.id in cluster.voters]
            spared_nodes = voters_down[:spared]
            cluster.trace(None, "stays down", [node.id for node in spared_nodes])
            down = [node for node in down if node not in spared_nodes]
        for node in down:
            cluster.trace(node.id, "restarts", "at the end")
            node.start()
        for node in nodes:
            node.slow_disk = False
            node.stalled_until_us = 0
            if node.paused:
                node.resume()

    # -- whom

    def _someone(self) -> SimNode:
        return self._luck.choice(list(self._cluster.nodes.values()))

    def _leader(self) -> SimNode:
        """The newest leader, or anyone when there is none."""
        leaders = [node for node in self._cluster.nodes.values() if node.leads]
        return max(leaders, key=lambda node: node.core.term) if leaders else self._someone()

    def _others(self, node: SimNode) -> list[SimNode]:
        return [other for other in self._cluster.nodes.values() if other is not node]

    # -- crashes

    def _crash(self, node: SimNode) -> None:
        if not node.up or (self._cluster.faults.memory_only and not self._may_lose_log()):
            return
        lost = node.crash()
        self._cluster.checks.count("crashes")
        self._cluster.checks.counters["writes lost"] += lost
        self._cluster.trace(node.id, "crashes", f"losing {lost} writes")
        delay = self._luck.randrange(1, self._cluster.faults.outage_us)
        self._cluster.schedule.after(delay, self._restart, node)

    def _may_lose_log(self) -> bool:
        """One log at a time, and never one that a decision of two could rest on: more is more
        than any replication survives."""
        cluster = self._cluster
        if not self._nothing_lost():
            return False
        for node in cluster.nodes.values():
            logs = [node.disk.durable.log, node.disk.live.log]
            configurations = [known for log in logs for _, known in log.configurations()]
            if node.up:
                configurations.append(node.core.members)
            for members in (cluster.begun_with, *configurations):
                if any(0 < len(side) < 3 for side in (members.voters, members.outgoing)):
                    return False
        return True

    def _nothing_lost(self) -> bool:
        return not any(
            node.recovering or node.disk.durable.damaged is not None
            for node in self._cluster.nodes.values()
        )

    def _damage(self) -> None:
        """A node dies, and its disk with it, a little."""
        node = self._someone()
        if not self._may_lose_log():
            return
        if node.up:
            self._crash(node)
        index = node.disk.damage(self._luck)
        if index is not None:
            self._cluster.checks.count("bit flips")
            self._cluster.trace(node.id, "disk flips", f"a bit of entry {index}")

    def _restart(self, node: SimNode) -> None:
        if self._active and not node.up:
            self._cluster.trace(node.id, "restarts", "")
            node.start()

    def _crash_leader(self) -> None:
        self._crash(self._leader())

    def _crash_one(self) -> None:
        self._crash(self._someone())

    def _crash_some(self) -> None:
        nodes = list(self._cluster.nodes.values())
        for node in self._luck.sample(nodes, self._luck.randint(1, len(nodes))):
            self._crash(node)

    def _crash_all(self) -> None:
        for node in self._cluster.nodes.values():
            self._crash(node)

    # -- cuts

    def _cut(self, senders: list[SimNode], receivers: list[SimNode], *, both: bool) -> None:
        network = self._cluster.network
        left, right = [node.id for node in senders], [node.id for node in receivers]
        network.cut(left, right)
        if both:
            network.cut(right, left)
        self._cluster.checks.count("cuts" if both else "one-way cuts")
        self._cluster.trace(None, "cuts", f"{left} {'<' if both else ''}-> {right}")
        cut_us = self._cluster.faults.cut_us
        if cut_us and self._luck.random() < 0.8:
            self._cluster.schedule.after(self._luck.randrange(1, cut_us), self._heal)

    def _isolate_leader(self) -> None:
        leader = self._leader()
        self._cut([leader], self._others(leader), both=True)

    def _split(self) -> None:
        nodes = list(self._cluster.nodes.values())
        self._luck.shuffle(nodes)
        half = self._luck.randint(0, len(nodes))
        self._cut(nodes[:half], nodes[half:], both=True)

    def _one_way(self) -> None:
        node = self._someone()
        others = self._luck.sample(
            self._others(node), self._luck.randint(0, len(self._others(node)))
        )
        if self._luck.random() < 0.5:
            self._cut([node], others, both=False)
        else:
            self._cut(others, [node], both=False)

    def _mute_leader(self) -> None:
        """It hears nobody, but is heard: without check-quorum it would lead for ever."""
        leader = self._leader()
        self._cut(self._others(leader), [leader], both=False)

    def _bridge(self) -> None:
        """Two halves that see each other only through one node."""
        middle = self._someone()
        others = self._others(middle)
        self._luck.shuffle(others)
        half = len(others) // 2
        self._cut(others[:half], others[half:], both=True)

    def _heal(self) -> None:
        self._cluster.network.heal()
        self._cluster.trace(None, "heals", "all links")

    # -- pauses, wishes, slowness

    def _pause(self, node: SimNode) -> None:
        if not node.up or node.paused:
            return
        node.pause()
        self._cluster.checks.count("pauses")
        self._cluster.trace(node.id, "pauses", "")
        delay = self._luck.choice((100 * MS, SECOND, 3 * SECOND))
        self._cluster.schedule.after(self._luck.randrange(1, delay), self._resume, node, node.life)

    def _resume(self, node: SimNode, life: int) -> None:
        if node.paused and node.life == life:
            self._cluster.trace(node.id, "resumes", "")
            node.resume()

    def _pause_leader(self) -> None:
        self._pause(self._leader())

    def _pause_one(self) -> None:
        self._pause(self._someone())

    def _transfer(self) -> None:
        leader = self._leader()
        to = self._luck.choice(list(self._cluster.nodes))
        self._cluster.trace(leader.id, "is asked to", f"transfer to {to}")
        self._cluster.checks.count("transfers")

        def transfer(core: RaftCore) -> None:
            # It may have lost leadership while it was paused.
            if core.role is Role.LEADER and to in core.members.voters:
                core.transfer_leader(to)

        leader.ask(transfer)

    def _campaign(self) -> None:
        node = self._someone()
        self._cluster.trace(node.id, "is asked to", "campaign")
        node.ask(lambda core: core.campaign())

    def _change_members(self) -> None:
        leader = self._leader()
        if not self._nothing_lost():
            return  # a member that may not vote could become one that is needed
        nodes = list(self._cluster.nodes)
        self._luck.shuffle(nodes)
        size = self._luck.choices((1, 2, 3, 4, 5), (2, 3, 10, 4, 6))[0]
        voters, rest = nodes[:size], nodes[size:]
        learners = rest[: self._luck.randint(0, len(rest))]

        def change(core: RaftCore) -> None:
            if not self._nothing_lost():
                return
            try:
                core.change_members(voters=voters, learners=learners)
            except (NotLeader, ChangeRefused):
                return
            self._cluster.checks.count("member changes")
            self._cluster.trace(core.node, "changes members", f"to {voters}, learners {learners}")

        leader.ask(change)

    def _stall_disk(self) -> None:
        node = self._someone()
        stall_us = self._luck.randrange(1, self._cluster.faults.stall_us)
        node.stalled_until_us = self._cluster.schedule.now_us + stall_us
        self._cluster.checks.count("stalled disks")
        self._cluster.trace(node.id, "disk stalls", f"for {stall_us // 1000} ms")

    def _slow_disk(self) -> None:
        node = self._someone()
        node.slow_disk = not node.slow_disk
        self._cluster.trace(node.id, "disk is", "slow" if node.slow_disk else "normal")

    def _unreachable(self) -> None:
        leader, to = self._leader(), self._someone().id
        leader.ask(lambda core: core.report_unreachable(to))
