"""Faults of the network between nodes: partitions of several shapes, slow and lossy links.

Owns: how they begin, and `undo`, which ends them all.
May not touch: networks other than that of its machines (network.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from broker.local import LocalNode
from chaos.campaign.machines.machine import Machines
from chaos.campaign.machines.network import Namespaces
from chaos.campaign.machines.standby import Standby
from chaos.campaign.plan import PlannedFault

FLAPS = 5
OLD_LEADER_S = 1.5  # a deposed leader may answer clients this long before it can reach the others


@dataclass(slots=True)
class NetworkFaults:
    machines: Machines
    standby: Standby | None

    @property
    def _network(self) -> Namespaces:
        assert self.machines.spaces is not None, "the plan needs namespaces"
        return self.machines.spaces

    async def act(self, fault: PlannedFault, victims: Sequence[LocalNode]) -> None:
        nodes = self.machines.cluster.nodes
        hit = [place for place, node in enumerate(nodes) if node in victims]
        rest = [place for place in range(len(nodes)) if place not in hit]
        match fault.kind.name:
            case "old-leader":
                await self._old_leader(fault, victims, hit, rest)
                return
            case "flapping":
                await self._flap(fault, hit, rest)
                return
            case _ if fault.kind.shape:
                self._network.shape(hit, fault.kind.shape)
            case _ if fault.kind.quality is not None:
                await asyncio.to_thread(self._network.degrade, hit, fault.kind.quality, fault.salt)
            case name:
                self._cut(name, hit, rest)
        await asyncio.sleep(fault.hold_s)

    def _cut(self, name: str, hit: list[int], rest: list[int]) -> None:
        size = len(hit) + len(rest)
        match name:
            case "one-way":
                self._network.cut(hit, rest)
            case "ring":
                for one in range(size):
                    near = {one, (one + 1) % size, (one - 1) % size}
                    self._network.cut([one], [other for other in range(size) if other not in near])
            case "clusters-apart":
                assert self.standby is not None, "the plan needs a second cluster"
                self._network.part(range(size), self.standby.places)
            case _:
                self._network.part(hit, rest)

    async def _old_leader(
        self, fault: PlannedFault, victims: Sequence[LocalNode], hit: list[int], rest: list[int]
    ) -> None:
        self._network.part(hit, rest)
        for node in victims:
            node.pause()
        await asyncio.sleep(fault.hold_s)
        for node in victims:
            node.resume()
        await asyncio.sleep(OLD_LEADER_S)

    async def _flap(self, fault: PlannedFault, hit: list[int], rest: list[int]) -> None:
        for _ in range(FLAPS):
            self._network.part(hit, rest)
            await asyncio.sleep(fault.hold_s / (2 * FLAPS))
            self._network.heal()
            await asyncio.sleep(fault.hold_s / (2 * FLAPS))

    def undo(self) -> None:
        if self.machines.spaces is not None:
            self.machines.spaces.heal()
