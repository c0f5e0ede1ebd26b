"""Faults of a node's machine: its clock, flushes, disk, power and resource limits.

Owns: how they begin, and `undo`, which ends them all.
May not touch: other processes and disks than those of its machines."""

from __future__ import annotations

import asyncio
import os
import random
import resource
from dataclasses import dataclass, field, replace
from pathlib import Path

from chaos.campaign.machines.conditions import NORMAL, Conditions
from chaos.campaign.machines.machine import Machine, Machines
from chaos.campaign.plan import Needs, PlannedFault

SLOW_FLUSH_S = 0.3
CLOCK_JUMPS_S = (-3600, -300, -5, 5, 300, 3600)
LEFT_BYTES = 256 << 10  # on a full disk
MEMORY_MORE = 2 << 20  # that a node still gets before an allocation fails


@dataclass(slots=True)
class MachineFaults:
    machines: Machines
    _limited: list[tuple[Machine, int, int, tuple[int, int]]] = field(default_factory=list)

    async def act(self, fault: PlannedFault, victims: list[Machine]) -> None:
        match fault.kind.name:
            case _ if fault.kind.needs is Needs.ALTERED:
                _condition(victims, _conditions(fault))
            case "full-disk" | "full-disk-all":
                for machine in victims:
                    assert machine.disk is not None
                    await asyncio.to_thread(machine.disk.fill, LEFT_BYTES)
            case "power-cut-minority" | "power-cut-all":
                await self._cut_power(fault, victims)
                return
            case "few-descriptors":
                for machine in victims:
                    self._limit(machine, resource.RLIMIT_NOFILE, _descriptors(machine))
            case "little-memory":
                for machine in victims:
                    self._limit(machine, resource.RLIMIT_AS, _memory(machine) + MEMORY_MORE)
            case name:
                raise AssertionError(name)
        await asyncio.sleep(fault.hold_s)

    async def _cut_power(self, fault: PlannedFault, victims: list[Machine]) -> None:
        """Cut the power while disks are slow, so that there are writes that were not flushed."""
        _condition(victims, replace(NORMAL, flush_takes_s=SLOW_FLUSH_S))
        await asyncio.sleep(fault.hold_s)
        for machine in victims:
            assert machine.disk is not None
            machine.disk.cut_power()
        for machine in victims:
            await asyncio.to_thread(machine.after_power_cut)
        _condition(victims, NORMAL)

    def _limit(self, machine: Machine, what: int, soft: int) -> None:
        pid = machine.node.pid
        before = resource.prlimit(pid, what)
        self._limited.append((machine, pid, what, before))
        resource.prlimit(pid, what, (soft, before[1]))

    def undo(self) -> None:
        while self._limited:
            machine, pid, what, before = self._limited.pop()
            process = machine.node.process
            if process is None or process.poll() is not None:
                machine.node.process = None  # it ran out of resources: the injector restarts it
            elif process.pid == pid:
                resource.prlimit(pid, what, before)
        for machine in self.machines.all:
            if machine.conditions != NORMAL:
                machine.set_conditions(NORMAL)
            if machine.disk is not None:
                machine.disk.free()


def _conditions(fault: PlannedFault) -> Conditions:
    match fault.kind.name:
        case "clock-jump":
            ahead = random.Random(fault.salt).choice(CLOCK_JUMPS_S)
            return replace(NORMAL, clock_ahead_s=float(ahead))
        case "failing-flush":
            return replace(NORMAL, flush_fails=True)
        case _:
            return replace(NORMAL, flush_takes_s=SLOW_FLUSH_S)


def _condition(victims: list[Machine], conditions: Conditions) -> None:
    for machine in victims:
        machine.set_conditions(conditions)


def _descriptors(machine: Machine) -> int:
    """The number of open file descriptors."""
    return len(os.listdir(f"/proc/{machine.node.pid}/fd"))


def _memory(machine: Machine) -> int:
    """Bytes of its address space."""
    pages = int(Path(f"/proc/{machine.node.pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize()
