"""Faults on real processes: how each kind of the plan begins and ends.

Owns: what is done to nodes, networks and files; every fault ends with all nodes started and all
cuts healed, also when the run is cancelled.
May not touch: processes, files and namespaces other than those of its own cluster."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from broker.local import LocalCluster, LocalNode
from chaos.campaign.network import Namespaces
from chaos.campaign.plan import PlannedFault
from chaos.damage_rounds import Damage, damages

HEAL_WITHIN_S = 90.0
FLAPS = 5


@dataclass(slots=True)
class FaultInjector:
    """Acts on one cluster. `leader` names the leader of the stream that is written."""

    cluster: LocalCluster
    network: Namespaces | None
    leader: Callable[[], Awaitable[str]]
    say: Callable[[str], None]
    emptied: str = ""  # the node whose data is gone or damaged: a minority, so it is the only one

    async def inject(self, fault: PlannedFault) -> list[str]:
        """Do it and undo it; the names of the nodes it hit. The nodes are healthy at the end."""
        victims = await self._victims(fault)
        names = [node.name for node in victims]
        self.say(f"{fault.kind.text}: {', '.join(names)}")
        try:
            await self._act(fault, victims)
        finally:
            self._undo()
        await self.healthy()
        return names

    async def healthy(self) -> None:
        for node in self.cluster.nodes:
            await asyncio.to_thread(node.wait_healthy, timeout_s=HEAL_WITHIN_S)

    async def _victims(self, fault: PlannedFault) -> list[LocalNode]:
        nodes = self.cluster.nodes
        if fault.kind.leader:
            name = await self.leader()
            return [node for node in nodes if node.name == name] or [nodes[fault.victims[0]]]
        if fault.kind.name in ("wipe", "flip") and self.emptied:
            return [node for node in nodes if node.name == self.emptied]
        if fault.kind.name == "rolling-restart":
            return list(nodes)
        return [nodes[position] for position in fault.victims]

    async def _act(self, fault: PlannedFault, victims: list[LocalNode]) -> None:
        match fault.kind.name:
            case "kill-leader" | "kill" | "kill-minority" | "kill-all":
                for node in victims:
                    node.kill()
                await asyncio.sleep(fault.hold_s)
            case "pause-leader" | "pause":
                for node in victims:
                    node.pause()
                await asyncio.sleep(fault.hold_s)
            case "restart" | "rolling-restart":
                for node in victims:
                    await asyncio.to_thread(node.stop)
                    await asyncio.sleep(fault.hold_s)
                    node.start()
                    await asyncio.to_thread(node.wait_healthy, timeout_s=HEAL_WITHIN_S)
            case "wipe" | "flip":
                await self._damage(fault, victims[0])
            case _:
                await self._network(fault, victims)

    async def _damage(self, fault: PlannedFault, node: LocalNode) -> None:
        node.kill()
        self.emptied = node.name
        if fault.kind.name == "wipe":
            await asyncio.to_thread(shutil.rmtree, node.directory / "data", ignore_errors=True)
        else:
            dice = random.Random(fault.salt)
            kind, path = dice.choice(sorted(damages(node)))
            self.say(Damage(kind, path, "flip").apply(dice))
        await asyncio.sleep(fault.hold_s)

    async def _network(self, fault: PlannedFault, victims: list[LocalNode]) -> None:
        network, nodes = self.network, self.cluster.nodes
        assert network is not None, "the plan needs namespaces"
        hit = [nodes.index(node) for node in victims]
        rest = [position for position in range(len(nodes)) if position not in hit]
        match fault.kind.name:
            case "one-way":
                network.cut(hit, rest)
            case "ring":
                for one in range(len(nodes)):
                    near = {one, (one + 1) % len(nodes), (one - 1) % len(nodes)}
                    network.cut([one], [other for other in range(len(nodes)) if other not in near])
            case "flapping":
                for _ in range(FLAPS):
                    network.part(hit, rest)
                    await asyncio.sleep(fault.hold_s / (2 * FLAPS))
                    network.heal()
                    await asyncio.sleep(fault.hold_s / (2 * FLAPS))
                return
            case _:
                network.part(hit, rest)
        await asyncio.sleep(fault.hold_s)

    def _undo(self) -> None:
        if self.network is not None:
            self.network.heal()
        for node in self.cluster.nodes:
            if node.process is None:
                node.start()
            else:
                node.resume()
