"""Changes of the cluster itself: members join and leave, versions change.

Owns: the steps of a change. It ends with the original members and version.
May not touch: nodes other than those of its machines.
Spec: docs/cluster.md."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import nats.errors

from broker.local import LocalNode, NodeFailed, our_command
from chaos.campaign.faults.versions import readable_by
from chaos.campaign.machines.machine import SYSTEM_PASSWORD, SYSTEM_USER, Machine, Machines
from chaos.campaign.plan import PlannedFault
from chaos.workload import quiet

HEAL_WITHIN_S = 90.0
ASK_EVERY_S = 0.2


@dataclass(slots=True)
class MemberFaults:
    machines: Machines
    previous: Path | None  # the packages of the previous version
    _configs: dict[str, str] = field(default_factory=dict)  # of this version, by node

    async def act(self, fault: PlannedFault, victim: LocalNode) -> None:
        if fault.kind.name == "upgrade":
            await self._upgrade(fault)
        else:
            await self._change(fault, victim)

    async def _change(self, fault: PlannedFault, leaving: LocalNode) -> None:
        """The spare joins; `leaving` is removed, loses its disk and joins again; the spare
        leaves."""
        spare, nodes = self.machines.spare, self.machines.cluster.nodes
        nodes.append(spare.node)
        spare.node.start()
        await asyncio.to_thread(spare.node.wait_healthy, timeout_s=HEAL_WITHIN_S)
        await self._until_member(spare.node, member=True)
        await self._remove(self.machines.of(leaving))
        await asyncio.sleep(fault.hold_s)
        leaving.start()
        await asyncio.to_thread(leaving.wait_healthy, timeout_s=HEAL_WITHIN_S)
        await self._until_member(leaving, member=True)
        await self._remove(spare)
        nodes.remove(spare.node)

    async def _remove(self, machine: Machine) -> None:
        answer = await self._ask("SERVER.REMOVE", machine.node, peer=machine.node.name)
        if "error" in answer:
            raise NodeFailed(f"{machine.node.name} is not removed: {answer['error']}")
        await self._until_member(machine.node, member=False)
        await asyncio.to_thread(machine.node.stop)
        await asyncio.to_thread(machine.wipe)

    async def _until_member(self, node: LocalNode, *, member: bool) -> None:
        deadline = time.monotonic() + HEAL_WITHIN_S
        while time.monotonic() < deadline:
            servers = (await self._ask("SERVER.STATUS", node)).get("servers", ())
            found = [one for one in servers if one["name"] == node.name]
            if bool(found) == member and all(one["state"] == "member" for one in found):
                return
            await asyncio.sleep(ASK_EVERY_S)
        what = "no member" if member else "still a member"
        raise NodeFailed(f"{node.name} is {what} after {HEAL_WITHIN_S:.0f} s")

    async def _ask(self, subject: str, about: LocalNode, **body: str) -> dict[str, Any]:
        """The answer of another node; an error document if there was none."""
        others = [node.url for node in self.machines.cluster.nodes if node is not about]
        try:
            client = await nats.connect(
                others, user=SYSTEM_USER, password=SYSTEM_PASSWORD, connect_timeout=5,
                error_cb=quiet,
            )  # fmt: skip
            try:
                request = json.dumps(body).encode()
                answer = await client.request(f"$JS.API.{subject}", request, timeout=20)
                return dict(json.loads(answer.data))
            finally:
                await client.close()
        except (nats.errors.Error, OSError, TimeoutError) as error:
            return {"error": str(error) or type(error).__name__}

    def begin_with_previous(self) -> None:
        """Called before the first start: found the cluster with the previous version, to which it
        can then be downgraded."""
        for node in self.machines.cluster.nodes:
            self._set_version(node, previous=True)

    async def upgrade_all(self) -> None:
        for node in self.machines.cluster.nodes:
            await self._restart(node, 0.0, previous=False)

    async def _upgrade(self, fault: PlannedFault) -> None:
        """Downgrade every node to the previous version, one after the other, then upgrade all."""
        assert self.previous is not None
        for node in self.machines.cluster.nodes:
            await self._restart(node, fault.hold_s, previous=True)
        for node in self.machines.cluster.nodes:
            await self._restart(node, fault.hold_s, previous=False)

    async def _restart(self, node: LocalNode, wait_s: float, *, previous: bool) -> None:
        await asyncio.to_thread(node.stop)
        self._set_version(node, previous=previous)
        node.start()
        await asyncio.to_thread(node.wait_healthy, timeout_s=HEAL_WITHIN_S)
        await asyncio.sleep(wait_s)

    def _set_version(self, node: LocalNode, *, previous: bool) -> None:
        command = our_command() if previous else self.machines.command(self.machines.of(node))
        node.command = [*self.machines.prefix(node), *command]
        for name, value in (("PYTHONPATH", str(self.previous)), ("JETRAFT_PURE", "1")):
            node.environment.pop(name, None)
            if previous:
                node.environment[name] = value
        config = self._configs.setdefault(node.name, node.config_path.read_text())
        assert self.previous is not None
        node.config_path.write_text(readable_by(self.previous, config) if previous else config)

    def undo(self) -> None:
        """Use the current version again for a node that is started next."""
        for node in self.machines.cluster.nodes:
            if "PYTHONPATH" in node.environment:
                self._set_version(node, previous=False)
