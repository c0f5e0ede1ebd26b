"""Where a new stream's replicas go.

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
) -> list[NodeId] | None:
    """The least loaded living members, or None when fewer than `replicas` are alive.

    The first of the list is the one that should lead first."""
    living = [node for node in members if alive(node)]
    if len(living) < replicas:
        return None

    def rank(node: NodeId) -> tuple[int, bytes]:
        return load(node), sha256(f"{name}:{node}".encode()).digest()

    return sorted(living, key=rank)[:replicas]
