"""Placement: which nodes hold a stream's replicas, at creation and when their number changes.

Owns: the choice of nodes for one stream, as a pure function of its arguments.
May not touch: sockets, clocks, random numbers. Ties are broken by a hash of the stream's name, so
that streams spread over nodes with equal load.
Spec: NATS JetStream API, num_replicas; errors 10005 and 10074."""

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
    """The least loaded members that are alive, or None when there are fewer than `replicas`.

    The first node of the list campaigns first. Nodes in `keep` hold a replica already: they are
    preferred, in their order, those alive first, and count even when they are disconnected."""
    present = [*(node for node in keep if alive(node)), *(node for node in keep if not alive(node))]

    def rank(node: NodeId) -> tuple[int, bytes]:
        return load(node), sha256(f"{name}:{node}".encode()).digest()

    others = sorted((n for n in members if alive(n) and n not in present), key=rank)
    chosen = [*present, *others][:replicas]
    return chosen if len(chosen) == replicas else None
