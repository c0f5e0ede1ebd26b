"""The nemesis: it injects crashes, network cuts, pauses and transfers at random times.

Owns: which fault comes next. Every fault ends by itself or in stop().
May not touch: cores, except through what a host may ask of them.
Spec: chaos/sim/consensus/faults.py, Faults.weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from chaos.sim.consensus.checks import SafetyChecks
from chaos.sim.consensus.disk import DiskTrouble
from chaos.sim.consensus.environment import SimEnvironment
from chaos.sim.consensus.node import SimNode
from chaos.sim.consensus.schedule import MS, SECOND
from raft.core.quorum import majority
from raft.core.raft_core import RaftCore
from raft.types import ChangeRefused, NodeId, NotLeader, Role


class Nemesis:
    """Breaks nodes, disks and links of one cluster until stop()."""

    def __init__(
        self,
        environment: SimEnvironment,
        checks: SafetyChecks,
        nodes: Mapping[NodeId, SimNode],
        rng: Random,
    ) -> None:
        self._environment = environment
        self._checks = checks
        self._nodes = nodes
        self._rng = rng
        self._active = True
        weights = environment.faults.weights
        self._actions: list[Callable[[], None]] = [getattr(self, f"_{name}") for name in weights]
        self._weights = list(weights.values())

    def start(self) -> None:
        self._schedule_action()

    def _schedule_action(self) -> None:
        mean = self._environment.faults.nemesis_us
        self._environment.schedule.after(self._rng.randrange(1, 2 * mean), self._act)

    def _act(self) -> None:
        if self._active:
            self._rng.choices(self._actions, self._weights)[0]()
            self._schedule_action()

    def stop(self) -> None:
        """End all faults. In some seeds a minority of the voters stays down."""
        self._active = False
        environment = self._environment
        environment.network.heal()
        self._mend()
        nodes = list(self._nodes.values())
        down = [node for node in nodes if not node.up]
        if environment.faults.minority_stays_down and self._nothing_lost():
            voters = environment.begun_with.voters
            minority = len(voters) - majority(len(voters))
            staying = [node for node in down if node.id in voters][:minority]
            environment.trace(None, "stays down", [node.id for node in staying])
            down = [node for node in down if node not in staying]
        for node in down:
            environment.trace(node.id, "restarts", "at the end")
            node.start()
        for node in nodes:
            node.disk.trouble = DiskTrouble()
            if node.paused:
                node.resume()
            if node.up:
                node.recover_disk()

    # -- choice of nodes

    def _any_node(self) -> SimNode:
        return self._rng.choice(list(self._nodes.values()))

    def _leader(self) -> SimNode:
        """The newest leader, or any node when there is none."""
        leaders = [node for node in self._nodes.values() if node.leads]
        return max(leaders, key=lambda node: node.core.term) if leaders else self._any_node()

    def _others(self, node: SimNode) -> list[SimNode]:
        return [other for other in self._nodes.values() if other is not node]

    # -- crashes

    def _crash(self, node: SimNode) -> None:
        if not node.up or (self._environment.faults.memory_only and not self._may_lose_log()):
            return
        lost = node.crash()
        self._checks.count("crashes")
        self._checks.counters["writes lost"] += lost
        self._environment.trace(node.id, "crashes", f"losing {lost} writes")
        delay = self._rng.randrange(1, self._environment.faults.outage_us)
        self._environment.schedule.after(delay, self._restart, node)

    def _may_lose_log(self) -> bool:
        """Whether a log may be lost now: one log at a time, and only if every configuration has at
        least three voters. No replication survives more than that."""
        if not self._nothing_lost():
            return False
        for node in self._nodes.values():
            logs = [node.disk.durable.log, node.disk.live.log]
            configurations = [known for log in logs for _, known in log.configurations()]
            if node.up:
                configurations.append(node.core.members)
            for members in (self._environment.begun_with, *configurations):
                if any(0 < len(voters) < 3 for voters in (members.voters, members.outgoing)):
                    return False
        return True

    def _nothing_lost(self) -> bool:
        return not any(
            node.recovering or node.disk.durable.damaged is not None
            for node in self._nodes.values()
        )

    def _damage(self) -> None:
        """Crash a node and flip a bit on its disk."""
        node = self._any_node()
        if not self._may_lose_log():
            return
        if node.up:
            self._crash(node)
        index = node.disk.damage(self._rng)
        if index is not None:
            self._checks.count("bit flips")
            self._environment.trace(node.id, "disk flips", f"a bit of entry {index}")

    def _restart(self, node: SimNode) -> None:
        if self._active and not node.up:
            self._environment.trace(node.id, "restarts", "")
            node.start()

    def _crash_leader(self) -> None:
        self._crash(self._leader())

    def _crash_one(self) -> None:
        self._crash(self._any_node())

    def _crash_some(self) -> None:
        nodes = list(self._nodes.values())
        for node in self._rng.sample(nodes, self._rng.randint(1, len(nodes))):
            self._crash(node)

    def _crash_all(self) -> None:
        for node in self._nodes.values():
            self._crash(node)

    # -- cuts

    def _cut(self, senders: list[SimNode], receivers: list[SimNode], *, both: bool) -> None:
        network = self._environment.network
        left, right = [node.id for node in senders], [node.id for node in receivers]
        network.cut(left, right)
        if both:
            network.cut(right, left)
        self._checks.count("cuts" if both else "one-way cuts")
        self._environment.trace(None, "cuts", f"{left} {'<' if both else ''}-> {right}")
        cut_us = self._environment.faults.cut_us
        if cut_us and self._rng.random() < 0.8:
            self._environment.schedule.after(self._rng.randrange(1, cut_us), self._heal)

    def _isolate_leader(self) -> None:
        leader = self._leader()
        self._cut([leader], self._others(leader), both=True)

    def _split(self) -> None:
        nodes = list(self._nodes.values())
        self._rng.shuffle(nodes)
        half = self._rng.randint(0, len(nodes))
        self._cut(nodes[:half], nodes[half:], both=True)

    def _one_way(self) -> None:
        node = self._any_node()
        others = self._rng.sample(self._others(node), self._rng.randint(0, len(self._others(node))))
        if self._rng.random() < 0.5:
            self._cut([node], others, both=False)
        else:
            self._cut(others, [node], both=False)

    def _mute_leader(self) -> None:
        """The leader receives nothing, but its messages arrive: without check-quorum it would lead
        forever."""
        leader = self._leader()
        self._cut(self._others(leader), [leader], both=False)

    def _bridge(self) -> None:
        """Two halves that are connected through one node only."""
        middle = self._any_node()
        others = self._others(middle)
        self._rng.shuffle(others)
        half = len(others) // 2
        self._cut(others[:half], others[half:], both=True)

    def _break_links(self) -> None:
        """Cut off the leader. The links break on the side of the others, which may also restart and
        elect another leader immediately; the old leader notices nothing."""
        leader = self._leader()
        others = [node for node in self._others(leader) if self._rng.random() < 0.9]
        self._cut([leader], others, both=True)
        restart = self._rng.random() < 0.3
        for node in others:
            node.links.break_link(leader.id)
            if restart:
                self._crash(node)
        self._checks.count("broken links")
        self._environment.trace(leader.id, "is lost", "by others, whose links break")
        if others and self._rng.random() < 0.7:
            for delay in (30 * MS, 70 * MS, 110 * MS):
                self._environment.schedule.after(delay, self._ask_to_campaign, others)
        delay = self._rng.choice((500 * MS, 2 * SECOND))
        self._environment.schedule.after(self._rng.randrange(1, delay), self._heal)

    def _ask_to_campaign(self, nodes: list[SimNode]) -> None:
        if self._active:
            self._rng.choice(nodes).ask(lambda core: core.campaign())

    def _mend(self) -> None:
        for node in self._nodes.values():
            node.links.mend()

    def _heal(self) -> None:
        self._mend()
        self._environment.network.heal()
        self._environment.trace(None, "heals", "all links")

    # -- pauses, requests, slow disks

    def _pause(self, node: SimNode) -> None:
        if not node.up or node.paused:
            return
        node.pause()
        self._checks.count("pauses")
        self._environment.trace(node.id, "pauses", "")
        delay = self._rng.choice((100 * MS, SECOND, 3 * SECOND))
        self._environment.schedule.after(
            self._rng.randrange(1, delay), self._resume, node, node.starts
        )

    def _resume(self, node: SimNode, starts: int) -> None:
        if node.paused and node.starts == starts:
            self._environment.trace(node.id, "resumes", "")
            node.resume()

    def _pause_leader(self) -> None:
        self._pause(self._leader())

    def _pause_one(self) -> None:
        self._pause(self._any_node())

    def _transfer(self) -> None:
        leader = self._leader()
        to = self._rng.choice(list(self._nodes))
        self._environment.trace(leader.id, "is asked to", f"transfer to {to}")
        self._checks.count("transfers")

        def transfer(core: RaftCore) -> None:
            # The node may have lost leadership while it was paused.
            if core.role is Role.LEADER and to in core.members.voters:
                core.transfer_leader(to)

        leader.ask(transfer)

    def _campaign(self) -> None:
        node = self._any_node()
        self._environment.trace(node.id, "is asked to", "campaign")
        node.ask(lambda core: core.campaign())

    def _change_members(self) -> None:
        leader = self._leader()
        if not self._nothing_lost():
            return  # a recovering member, which may not vote, could become a needed voter
        nodes = list(self._nodes)
        self._rng.shuffle(nodes)
        size = self._rng.choices((1, 2, 3, 4, 5), (2, 3, 10, 4, 6))[0]
        voters, rest = nodes[:size], nodes[size:]
        learners = rest[: self._rng.randint(0, len(rest))]

        def change(core: RaftCore) -> None:
            if not self._nothing_lost():
                return
            try:
                core.change_members(voters=voters, learners=learners)
            except (NotLeader, ChangeRefused):
                return
            self._checks.count("member changes")
            self._environment.trace(
                core.node, "changes members", f"to {voters}, learners {learners}"
            )

        leader.ask(change)

    def _stall_disk(self) -> None:
        node = self._any_node()
        stall_us = self._rng.randrange(1, self._environment.faults.stall_us)
        node.disk.trouble.stalled_until_us = self._environment.schedule.now_us + stall_us
        self._checks.count("stalled disks")
        self._environment.trace(node.id, "disk stalls", f"for {stall_us // 1000} ms")

    def _slow_disk(self) -> None:
        node = self._any_node()
        trouble = node.disk.trouble
        trouble.slow = not trouble.slow
        self._environment.trace(node.id, "disk is", "slow" if trouble.slow else "normal")

    def _fill_disk(self) -> None:
        node = self._any_node()
        full_us = self._rng.randrange(1, self._environment.faults.full_us)
        node.disk.trouble.full_until_us = self._environment.schedule.now_us + full_us
        self._checks.count("full disks")
        self._environment.trace(node.id, "disk is full", f"for {full_us // 1000} ms")

    def _fail_disk(self) -> None:
        node = self._any_node()
        node.disk.trouble.fails_next = True
        self._environment.trace(node.id, "disk is", "about to fail")

    def _unreachable(self) -> None:
        leader, to = self._leader(), self._any_node().id
        leader.ask(lambda core: core.report_unreachable(to))
