"""Where a stream's replicas go, when it is made and when their number changes.

Owns: the choice of nodes for one stream, as a pure function of what is known.
May not touch: sockets, clocks, dice; ties are broken by the stream's name, so that streams of
equal load still spread over the nodes.
Spec: JetStream sheet 2.1 (num_replicas, 10005, 10074)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

from raft import NodeId


def choose_peers(
    *,
    name: str,
    replicas: int,
    members: Sequence[NodeId],
    alive: Callable[[NodeId], bool],
    load: Callable[[NodeId], int],
    keep: Sequence[NodeId] = (),
) -> list[NodeId] | None:
    """The least loaded living members, or None when there are fewer than `replicas`.

    The first of the list is the one that should lead first. Those in `keep` hold a replica: they
    go before all others, in their order, living ones first, and count even when they are away."""
    there = [*(node for node in keep if alive(node)), *(node for node in keep if not alive(node))]

    def rank(node: NodeId) -> tuple[int, bytes]:
        return load(node), sha256(f"{name}:{node}".encode()).digest()

    others = sorted((n for n in members if alive(n) and n not in there), key=rank)
    chosen = [*there, *others][:replicas]
    return chosen if len(chosen) == replicas else None
