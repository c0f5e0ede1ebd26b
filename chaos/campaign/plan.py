"""The plan of a run: which faults, on which nodes, for how long, all from one seed.

Owns: the kinds of faults and how they are drawn.
May not touch: nodes, clocks, networks. The same seed and settings give the same plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from chaos.campaign.machines.network import Quality


class Needs(Enum):
    NOTHING = "nothing"
    NETWORK = "namespaces"  # network.py
    FILES = "files"  # of nodes on this machine
    DISK = "disk"  # a file system of its own for every node (chaos/disks.py)
    ALTERED = "altered"  # altered_node.py
    MEMBERS = "members"  # the system account, and a spare machine
    PREVIOUS = "previous"  # a directory with the version before
    LIMITS = "limits"  # of a process on this machine


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault. `leader`: it hits the node that leads a stream at that time. `shape`: a
    queueing discipline (tc) for its packets. `quality`: delay and loss of its link. `standby`: it
    hits the second cluster, which has a mirror."""

    name: str
    text: str
    needs: Needs = Needs.NOTHING
    leader: bool = False
    hold_s: tuple[float, float] = (1.0, 6.0)
    shape: str = ""
    quality: Quality | None = None
    standby: bool = False
    peer: bool = True  # nats-server can have it too


def _network(
    name: str, text: str, *, leader: bool = False, shape: str = "", quality: Quality | None = None
) -> Kind:
    return Kind(name, text, Needs.NETWORK, leader=leader, shape=shape, quality=quality)


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
        Kind(
            "upgrade", "every node in turn to the previous version, and back", Needs.PREVIOUS,
            hold_s=(0.5, 1.0), peer=False,
        ),
        _network("isolated-leader", "no node reaches the leader", leader=True),
        _network(
            "old-leader", "the leader stands still, and comes back to clients but not to nodes",
            leader=True,
        ),
        _network("halves", "the network falls into two parts"),
        _network("one-way", "what a node sends is lost, what is sent to it arrives"),
        _network("ring", "every node reaches its neighbors only"),
        _network("flapping", "a node is cut off and back, again and again"),
        _network("slow-link", "a node sends 2 Mbit/s at most",
                 shape="tbf rate 2mbit burst 32kb latency 400ms"),
        _network("delay", "what a node sends takes 100 ms longer, or 50, or 150",
                 quality=Quality(delay_ms=100, jitter_ms=50)),
        _network("loss", "every fifth packet that a node sends is lost",
                 quality=Quality(loss=0.2)),
        Kind("clock-jump", "the wall clock of a node jumps, and back", Needs.ALTERED, peer=False),
        Kind("slow-flush", "every flush of a node takes 0.3 s", Needs.ALTERED, peer=False),
        Kind("slow-flush-leader", "every flush of the leader takes 0.3 s", Needs.ALTERED,
             leader=True, peer=False),
        Kind("failing-flush", "flushes of a node fail (EIO)", Needs.ALTERED, peer=False),
        Kind("full-disk", "the disk of a node is full", Needs.DISK),
        Kind("full-disk-all", "the disks of all nodes are full", Needs.DISK),
        Kind("power-cut-minority", "a minority loses power: what was not flushed is gone",
             Needs.DISK),
        Kind("power-cut-all", "all nodes lose power while their disks are slow", Needs.DISK,
             hold_s=(0.5, 1.5)),
        Kind("wipe", "a node loses its disk and comes back empty", Needs.FILES),
        Kind("flip", "a bit of a file of a node flips while it is down", Needs.FILES),
        Kind("truncate", "a file of a node is cut while it is down", Needs.FILES),
        Kind("lost-voter",
             "a follower loses its log, and meets one that lags, while the others are down",
             Needs.FILES, hold_s=(2.0, 4.0)),
        Kind("members", "a node joins, another leaves and comes back empty", Needs.MEMBERS,
             hold_s=(0.5, 1.0), peer=False),
        Kind("few-descriptors", "a node can open no more files and sockets", Needs.LIMITS),
        Kind("little-memory", "a node gets no more memory", Needs.LIMITS),
        Kind("standby-kill", "kill -9 one node of the second cluster, or all", standby=True,
             peer=False),
        Kind("standby-pause", "a node of the second cluster stands still", standby=True,
             peer=False),
        Kind("clusters-apart", "the two clusters do not reach each other", Needs.NETWORK,
             standby=True, peer=False),
    )
}  # fmt: skip
ONE_DAMAGED = ("wipe", "flip", "truncate", "lost-voter")  # one disk at a time: a minority
ALL_NODES = ("kill-all", "power-cut-all", "full-disk-all")
MINORITY = ("kill-minority", "halves", "power-cut-minority")


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
        many = (nodes - 1) // 2 if kind.name in MINORITY else 1
        victims = tuple(range(nodes)) if kind.name in ALL_NODES else tuple(
            sorted(dice.sample(range(nodes), max(1, many)))
        )  # fmt: skip
        fault = PlannedFault(
            len(found) + 1, kind, victims, dice.uniform(pause_s / 2, pause_s * 1.5),
            dice.uniform(*kind.hold_s), dice.randrange(2**32),
        )  # fmt: skip
        found.append(fault)
        spent += fault.wait_s + fault.hold_s + 3.0
    return found
