"""The plan of one seed: how large the cluster is, how much work, which faults and how often.

Owns: the numbers, drawn from the seed.
May not touch: anything that runs."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.sim.broker.workloads import WORKLOADS
from chaos.sim.schedule import rng_for
from chaos.sim.world.virtual_time import MS, NS


@dataclass(frozen=True, slots=True)
class Plan:
    nodes: int
    workloads: tuple[str, ...]
    work_ns: int  # the faults end after this time at the latest
    fault_gap_ns: int  # between two faults, on average
    faults: tuple[str, ...]  # the kinds that occur

    @classmethod
    def drawn_from(cls, seed: int) -> Plan:
        rng = rng_for(seed, "plan")
        kinds = ("kill", "power", "pause", "cut", "one-way", "isolate")
        return cls(
            nodes=3,
            workloads=tuple(rng.sample(sorted(WORKLOADS), rng.randint(1, len(WORKLOADS)))),
            work_ns=rng.randint(4, 15) * NS,
            fault_gap_ns=rng.choice((300, 1000, 3000)) * MS,
            faults=tuple(kind for kind in kinds if rng.random() < 0.6),
        )
