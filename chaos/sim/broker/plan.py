"""The plan of one seed: how large the cluster is, how much work, which faults and when.

Owns: the numbers, drawn from the seed.
May not touch: anything that runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chaos.sim.broker.fault_script import Fault, draw_kinds, draw_script, one_end
from chaos.sim.broker.workloads import DRAWN, LATER
from chaos.sim.consensus.schedule import rng_for
from chaos.sim.world.virtual_time import MS, NS

WORKLOADS_MAX = 3


@dataclass(frozen=True, slots=True)
class Plan:
    nodes: int
    replicas_max: int  # of streams
    workloads: tuple[str, ...]
    work_ns: int  # no fault begins after this time
    script: tuple[Fault, ...]
    short_logs: bool  # logs are cut after a few entries, so that snapshots are needed
    small_queues: bool  # bounds of queues are reached (chaos/sim/broker/queue_bounds.py)
    compresses: bool  # streams are created with compression
    cipher: str  # of what nodes store; empty: it is not encrypted
    in_memory: bool  # streams with three replicas or more are in memory, and one node ends at most

    @classmethod
    def drawn_from(cls, seed: int, kinds: tuple[str, ...] = ()) -> Plan:
        """`kinds`: of faults, instead of those that the seed would use; then nothing is in
        memory."""
        rng = rng_for(seed, "plan")
        nodes = rng.choice((1, 3, 3, 3, 3, 3, 3, 5))
        work_ns = rng.randint(4, 15) * NS
        faults = rng_for(seed, "faults")
        drawn = draw_kinds(seed, faults, nodes)
        in_memory = not kinds and nodes > 1 and rng_for(seed, "storage").random() < 0.1
        replicas_max = rng.choice((3, nodes)) if nodes > 1 else 1
        script = draw_script(
            faults,
            kinds=kinds or drawn,
            nodes=nodes,
            gap_ns=faults.choice((300, 1000, 3000)) * MS,
            end_ns=work_ns,
        )
        return cls(
            nodes=nodes,
            replicas_max=replicas_max,
            workloads=_drawn_work(seed),
            work_ns=work_ns,
            short_logs=rng.random() < 0.7,
            small_queues=rng_for(seed, "queues").random() < 0.3,
            compresses=rng_for(seed, "compression").random() < 0.4,
            cipher=rng_for(seed, "encryption").choice(("chachapoly", "aes", *[""] * 8)),
            in_memory=in_memory,
            script=one_end(script) if in_memory else script,
        )

    def reduced(
        self, *, faults: tuple[int, ...] | None = None, workloads: tuple[str, ...] | None = None
    ) -> Plan:
        """With these faults only (positions in the script), and with this work only."""
        script = self.script if faults is None else tuple(self.script[one] for one in faults)
        return replace(self, script=script, workloads=workloads or self.workloads)


def _drawn_work(seed: int) -> tuple[str, ...]:
    rng = rng_for(seed, "workloads")  # its own generator: a new workload changes nothing else
    work = rng.sample(DRAWN, rng.randint(1, min(WORKLOADS_MAX, len(DRAWN))))
    added = [name for name, chance in LATER.items() if rng_for(seed, name).random() < chance]
    return (*added, *work)[:WORKLOADS_MAX]
