"""The script of a run: every fault with its time, drawn from the seed before anything runs.

Owns: the kinds of faults, how often each is drawn, and their parameters.
May not touch: nodes and network (chaos/sim/broker/nemesis.py performs the script).
Spec: any subset of a script is a valid script. So a failure is shrunk by leaving out faults, which
are identified by their positions in the script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from chaos.sim.consensus.schedule import rng_for
from chaos.sim.world.virtual_time import MS, NS

FIRST_FAULT_NS: Final = NS
FAULTS_MAX: Final = 60
DURATIONS_NS: Final = (50 * MS, 500 * MS, 2 * NS, 8 * NS)


@dataclass(frozen=True, slots=True)
class FaultKind:
    """`chance`: probability that a seed uses it at all. `nodes_min`: smallest cluster for it."""

    chance: float
    what: str
    nodes_min: int = 1


_FIRST_KINDS: Final[Mapping[str, FaultKind]] = {
    "kill": FaultKind(0.5, "a process ends without warning"),
    "power": FaultKind(0.5, "a computer ends: what was not flushed is lost, nobody is told"),
    "stop": FaultKind(0.3, "SIGTERM, and a start later"),
    "rolling": FaultKind(0.1, "SIGTERM and start, one node after the other", 3),
    "pause": FaultKind(0.4, "a process does not run, its clocks do"),
    "cut": FaultKind(0.4, "two nodes do not reach each other", 3),
    "one-way": FaultKind(0.3, "a node's frames do not arrive", 3),
    "isolate": FaultKind(0.4, "a node reaches nobody", 3),
    "halves": FaultKind(0.3, "two sides do not reach each other", 5),
    "ring": FaultKind(0.2, "every node reaches its two neighbors only", 5),
    "flap": FaultKind(0.2, "a node is isolated and is not, in quick turns", 3),
    "slow link": FaultKind(0.3, "frames from and to a node take longer, and vary", 3),
    "reset": FaultKind(0.3, "the links of a node end", 3),
    "rough": FaultKind(0.3, "Raft frames are lost, repeated and reordered", 3),
    "slow disk": FaultKind(0.2, "flushes take up to a second"),
    "full disk": FaultKind(0.2, "no space for a while"),
    "flush error": FaultKind(0.2, "flushes fail for a while"),
    "write error": FaultKind(0.2, "writes fail for a while"),
    "clock jump": FaultKind(
        0.2, "a wall clock is set to another time, up to an hour away, and back"
    ),
    "drift": FaultKind(0.2, "the clocks of a node run too fast or too slow"),
    "wipe": FaultKind(0.15, "a node gets an empty disk, once, if nothing is on it alone", 3),
    "join": FaultKind(0.1, "a new node joins, once", 3),
    "disconnect": FaultKind(0.4, "clients leave their node and connect to any"),
}
# New kinds go here. Whether a seed uses one of these is drawn with a generator of its own, so that
# seeds that do not use it keep their scripts.
_LATER_KINDS: Final[Mapping[str, FaultKind]] = {
    "damage": FaultKind(
        0.1, "a node ends, and its log is changed or cut, once, if nothing is on it alone", 3
    ),
    "state damage": FaultKind(
        0.1, "values of the state are changed or unreadable, once, if nothing is on it alone", 3
    ),
    "remove": FaultKind(
        0.1, "a member is removed for good, once, and its name returns with an empty disk", 3
    ),
    "old leader": FaultKind(
        0.1, "a leader does not run, and when it does, it reaches its clients before its peers", 3
    ),
    "unsteady return": FaultKind(
        0.15, "a node ends, and when it is back, its links end again and again", 3
    ),
    "file damage": FaultKind(
        0.1, "a node ends, and one of its small files is changed, cut or gone, once", 3
    ),
    "database damage": FaultKind(
        0.05, "a database cannot be opened, or RocksDB finds damage, once, as for a wipe", 3
    ),
    "crowded disk": FaultKind(
        0.1, "messages fit on a disk, but no temporary file and no copy of the database"
    ),
}
_ENDING_ONLY: Final = frozenset(("kill", "power", "stop"))
_ENDING: Final = _ENDING_ONLY | {
    "rolling",
    "wipe",
    "damage",
    "state damage",
    "file damage",
    "database damage",
    "remove",
    "unsteady return",
}
KINDS: Final[Mapping[str, FaultKind]] = {**_FIRST_KINDS, **_LATER_KINDS}


@dataclass(frozen=True, slots=True)
class Fault:
    """`strength` is a number from 0 to 999 whose meaning depends on the kind. `dice` seeds the
    choices that the fault makes when it happens."""

    at_ns: int
    kind: str
    node: int
    other: int  # another node, if there is one
    lasts_ns: int
    strength: int
    dice: int

    @property
    def boots(self) -> bool:
        """Whether the node restarts with a wrong clock."""
        return self.dice % 3 == 0

    def __str__(self) -> str:
        lasts = f"for {self.lasts_ns / NS} s"
        return f"{self.at_ns / NS:8.3f} s  {self.kind} n{self.node + 1} {lasts}"


def draw_kinds(seed: int, rng: Random, nodes: int) -> tuple[str, ...]:
    return tuple(
        name
        for name, kind in KINDS.items()
        if (rng if name in _FIRST_KINDS else rng_for(seed, name)).random() < kind.chance
        and nodes >= kind.nodes_min
    )


def draw_script(
    rng: Random, *, kinds: tuple[str, ...], nodes: int, gap_ns: int, end_ns: int
) -> tuple[Fault, ...]:
    """`gap_ns`: between two faults, on average."""
    script: list[Fault] = []
    at_ns = FIRST_FAULT_NS
    while kinds and at_ns < end_ns and len(script) < FAULTS_MAX:
        node = rng.randrange(nodes)
        script.append(
            Fault(
                at_ns,
                kind=rng.choice(kinds),
                node=node,
                other=(node + rng.randrange(1, nodes)) % nodes if nodes > 1 else node,
                lasts_ns=rng.choice(DURATIONS_NS),
                strength=rng.randrange(1000),
                dice=rng.getrandbits(32),
            )
        )
        at_ns += rng.randint(gap_ns // 4, 2 * gap_ns)
    return tuple(script)


def one_end(script: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Keep at most one fault that ends a process: the first that does nothing else."""
    kept: list[Fault] = []
    ended = False
    for fault in script:
        ends = fault.kind in _ENDING or (fault.kind == "clock jump" and fault.boots)
        if not ends or (fault.kind in _ENDING_ONLY and not ended):
            kept.append(fault)
            ended = ended or ends
    return tuple(kept)
