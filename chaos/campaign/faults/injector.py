"""Faults on real processes: how each kind of the plan begins and ends.

Owns: the faults of nodes and files. Every fault ends with all nodes started and all partitions
healed, also when the run is cancelled.
May not touch: processes, files and namespaces other than those of its own cluster.
Clocks, flushes, disks and limits: machine_faults.py. Networks: network_faults.py. Members and
versions: member_faults.py."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from broker.local import LocalCluster, LocalNode
from chaos.campaign.faults.machine_faults import MachineFaults
from chaos.campaign.faults.member_faults import HEAL_WITHIN_S, MemberFaults
from chaos.campaign.faults.network_faults import NetworkFaults
from chaos.campaign.machines.machine import Machine, Machines
from chaos.campaign.machines.standby import Standby
from chaos.campaign.plan import ONE_DAMAGED, Needs, PlannedFault
from chaos.damage_rounds import Damage, damages

LOSSES = ("wipe", "logs removed", "log cut")  # of a voter


@dataclass(slots=True)
class FaultInjector:
    """Acts on one cluster. `leader(salt)` names the leader of one of the streams that are used."""

    machines: Machines
    leader: Callable[[int], Awaitable[str]]
    say: Callable[[str], None]
    previous: Path | None = None
    standby: Standby | None = None
    emptied: str = ""  # the node whose data is lost or damaged; only one, so that it is a minority
    _machine: MachineFaults = field(init=False)
    _network: NetworkFaults = field(init=False)
    members: MemberFaults = field(init=False)

    def __post_init__(self) -> None:
        self._machine = MachineFaults(self.machines)
        self._network = NetworkFaults(self.machines, self.standby)
        self.members = MemberFaults(self.machines, self.previous)

    @property
    def _cluster(self) -> LocalCluster:
        return self.machines.cluster

    async def inject(self, fault: PlannedFault) -> list[str]:
        """Inject the fault and undo it. Returns the names of the nodes it hit. All nodes are
        healthy at the end."""
        victims = await self._victims(fault)
        names = [node.name for node in victims]
        self.say(f"{fault.kind.text}: {', '.join(names)}")
        try:
            await self._act(fault, victims)
        finally:
            self._undo()
        await self.healthy()
        return names

    @property
    def _nodes(self) -> list[LocalNode]:
        """The nodes of both clusters."""
        there = [] if self.standby is None else self.standby.cluster.nodes
        return [*self._cluster.nodes, *there]

    async def healthy(self) -> None:
        for node in self._nodes:
            await asyncio.to_thread(node.wait_healthy, timeout_s=HEAL_WITHIN_S)

    async def _victims(self, fault: PlannedFault) -> list[LocalNode]:
        nodes = self._cluster.nodes
        if fault.kind.standby:
            assert self.standby is not None, "the plan needs a second cluster"
            return self.standby.victims(fault.kind.name, fault.salt)
        if fault.kind.leader:
            name = await self.leader(fault.salt)
            return [node for node in nodes if node.name == name] or [nodes[fault.victims[0]]]
        if fault.kind.name in ONE_DAMAGED and self.emptied:
            return [node for node in nodes if node.name == self.emptied]
        if fault.kind.name in ("rolling-restart", "upgrade"):
            return list(nodes)
        return [nodes[position] for position in fault.victims]

    async def _act(self, fault: PlannedFault, victims: list[LocalNode]) -> None:
        match fault.kind.name:
            case "kill-leader" | "kill" | "kill-minority" | "kill-all" | "standby-kill":
                for node in victims:
                    node.kill()
                await asyncio.sleep(fault.hold_s)
            case "pause-leader" | "pause" | "standby-pause":
                for node in victims:
                    node.pause()
                await asyncio.sleep(fault.hold_s)
            case "restart" | "rolling-restart":
                for node in victims:
                    await asyncio.to_thread(node.stop)
                    await asyncio.sleep(fault.hold_s)
                    node.start()
                    await asyncio.to_thread(node.wait_healthy, timeout_s=HEAL_WITHIN_S)
            case "upgrade" | "members":
                await self.members.act(fault, victims[0])
            case _ if fault.kind.needs is Needs.FILES:
                await self._damage(fault, self.machines.of(victims[0]))
            case _ if fault.kind.needs is Needs.NETWORK:
                await self._network.act(fault, victims)
            case _:
                await self._machine.act(fault, [self.machines.of(node) for node in victims])

    async def _damage(self, fault: PlannedFault, machine: Machine) -> None:
        if fault.kind.name == "lost-voter":
            await self._lose_voter(fault, machine)
            return
        machine.node.kill()
        self.emptied = machine.node.name
        if fault.kind.name == "wipe":
            await asyncio.to_thread(machine.wipe)
        else:
            dice = random.Random(fault.salt)
            kind, path = dice.choice(sorted(damages(machine.data)))
            self.say(Damage(kind, path, fault.kind.name).apply(dice))
        await asyncio.sleep(fault.hold_s)

    async def _lose_voter(self, fault: PlannedFault, loser: Machine) -> None:
        """The nodes that lag and the one that lost its log form a majority, but must not act as
        one: the others have acknowledged entries that none of these nodes has any more."""
        dice = random.Random(fault.salt)
        self.emptied = loser.node.name
        others = [node for node in self._cluster.nodes if node is not loser.node]
        late = dice.sample(others, (len(self._cluster.nodes) - 1) // 2)
        for node in late:
            node.kill()
        await asyncio.sleep(fault.hold_s)  # the others continue
        rest = [node for node in others if node not in late]
        for node in (*rest, loser.node):
            node.kill()
        how = dice.choice(LOSSES)
        names = ", ".join(node.name for node in late)
        self.say(f"{loser.node.name}: {how}; it comes back with {names} alone")
        await asyncio.to_thread(_lose, loser, how, dice)
        for node in (*late, loser.node):
            node.start()
        await asyncio.sleep(2 * fault.hold_s)

    def _undo(self) -> None:
        self._network.undo()
        self._machine.undo()
        self.members.undo()
        for node in self._nodes:
            if node.process is None:
                node.start()
            else:
                node.resume()


def _lose(machine: Machine, how: str, dice: random.Random) -> None:
    logs = sorted(machine.data.rglob("*.seg"))
    if how == "wipe" or not logs:
        machine.wipe()
    elif how == "logs removed":
        for path in logs:
            path.unlink()
    else:  # the end of every log is gone
        for path in logs:
            Damage("log segment", path, "truncate").apply(dice)
