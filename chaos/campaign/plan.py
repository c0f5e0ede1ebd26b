"""The plan of a run: which fault, on whom, for how long, all from one seed.

Owns: the kinds of faults and how they are drawn.
May not touch: nodes, clocks, networks. The same seed and settings give the same plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Needs(Enum):
    NOTHING = "nothing"
    NETWORK = "namespaces"  # network.py
    FILES = "files"  # of nodes on this machine


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault. `leader`: it hits the leader of the stream, whoever that is by then."""

    name: str
    text: str
    needs: Needs = Needs.NOTHING
    leader: bool = False
    hold_s: tuple[float, float] = (1.0, 6.0)


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("kill-leader", "kill -9 the leader", leader=True),
        Kind("kill", "kill -9 a node"),
        Kind("kill-minority", "kill -9 as many nodes as a majority can do without"),
        Kind("kill-all", "kill -9 all nodes at once", hold_s=(0.0, 1.0)),
        Kind("pause-leader", "stop the leader's process for a while (SIGSTOP)", leader=True),
        Kind("pause", "stop a node's process for a while"),
        Kind("restart", "stop a node with SIGTERM, start it again", hold_s=(0.0, 1.0)),
        Kind("rolling-restart", "SIGTERM every node in turn", hold_s=(0.0, 0.5)),
        Kind("isolated-leader", "no node reaches the leader", Needs.NETWORK, leader=True),
        Kind("halves", "the network falls into two parts", Needs.NETWORK),
        Kind("one-way", "what a node sends is lost, what is sent to it arrives", Needs.NETWORK),
        Kind("ring", "every node reaches its neighbors only", Needs.NETWORK),
        Kind("flapping", "a node is cut off and back, again and again", Needs.NETWORK),
        Kind("wipe", "a node loses its disk and comes back empty", Needs.FILES),
        Kind("flip", "a bit of a file of a node flips while it is down", Needs.FILES),
    )
}


@dataclass(frozen=True, slots=True)
class PlannedFault:
    number: int
    kind: Kind
    victims: tuple[int, ...]  # positions of nodes; of a kind with `leader`, the fallback
    wait_s: float  # before it
    hold_s: float
    salt: int  # for choices inside the fault


def draw(
    seed: int, *, nodes: int, kinds: Sequence[str], seconds: float, pause_s: float = 4.0
) -> list[PlannedFault]:
    """Faults for about this long."""
    dice = random.Random(seed)
    found: list[PlannedFault] = []
    spent = 0.0
    while spent < seconds:
        kind = KINDS[dice.choice(list(kinds))]
        many = (nodes - 1) // 2 if kind.name in ("kill-minority", "halves") else 1
        victims = tuple(range(nodes)) if kind.name == "kill-all" else tuple(
            sorted(dice.sample(range(nodes), max(1, many)))
        )  # fmt: skip
        fault = PlannedFault(
            len(found) + 1, kind, victims, dice.uniform(pause_s / 2, pause_s * 1.5),
            dice.uniform(*kind.hold_s), dice.randrange(2**32),
        )  # fmt: skip
        found.append(fault)
        spent += fault.wait_s + fault.hold_s + 3.0
    return found
