"""Placement: which nodes hold a stream's replicas, at creation, in updates and in repairs.

Owns: the choice of nodes for one stream, as a pure function of its arguments, and why there is
none.
May not touch: sockets, clocks, random numbers. Ties are broken by a hash of the stream's name, so
that streams spread over nodes with equal load.
Spec: NATS JetStream API, num_replicas and placement; `unique_tag` of the server; errors 10005 and
10074."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from broker.jetstream.config.stream_config import Placement
from raft import NodeId

EXCLUDES = "!"  # a tag with this prefix excludes servers that have the tag
HALF_WEIGHT_BYTES = 10 << 30  # when all nodes store this much, bytes weigh half as much as replicas


@dataclass(slots=True)
class NoPlacement:
    """Why too few nodes are suitable, in nats-server's words."""

    offline: bool = False
    excluded: bool = False
    not_unique: bool = False
    missing: list[str] = field(default_factory=list)
    unlabeled: list[NodeId] = field(default_factory=list)  # nodes without a unique tag at all
    elsewhere: str = ""  # the wanted cluster, which is not this one

    def sentence(self, unique_tag: str, name: Callable[[NodeId], str]) -> str:
        """The reason, with details that nats-server omits: nodes without a unique tag, and the
        requested cluster."""
        text = str(self)
        if self.elsewhere:
            text += f", no server is in cluster '{self.elsewhere}'"
        if self.unlabeled:
            names = ", ".join(sorted(map(name, self.unlabeled)))
            text += f" (no tag '{unique_tag}...' on {names})"
        return text

    def __str__(self) -> str:
        text = "no suitable peers for placement"
        if self.offline:
            text += ", peer offline"
        if self.excluded:
            text += ", exclude tag set"
        if self.not_unique:
            text += ", server tag not unique"
        if self.missing:
            text += f", tags not matched [{', '.join(map(repr, self.missing))}]"
        return text


def node_loads(
    nodes: Sequence[NodeId], replicas: Callable[[NodeId], int], stored: Callable[[NodeId], int]
) -> dict[NodeId, float]:
    """The load of each node: its share of all replicas plus its share of all stored bytes; the
    latter counts little while the cluster stores little. So streams are spread by number, and no
    node gets all the large ones."""
    all_replicas = sum(map(replicas, nodes)) or 1
    all_bytes = sum(map(stored, nodes)) + HALF_WEIGHT_BYTES
    return {node: replicas(node) / all_replicas + stored(node) / all_bytes for node in nodes}


@dataclass(frozen=True, slots=True)
class PlacementView:
    """What the choice depends on besides the stream."""

    members: Sequence[NodeId]
    alive: Callable[[NodeId], bool]
    load: Callable[[NodeId], float]
    cluster: str = ""
    tags: Callable[[NodeId], Sequence[str]] = lambda _: ()
    unique_tag: str = ""  # replicas of a stream have different tags with this prefix


def choose_peers(
    view: PlacementView,
    *,
    name: str,
    replicas: int,
    keep: Sequence[NodeId] = (),
    placement: Placement | None = None,
) -> list[NodeId] | NoPlacement:
    """The least loaded members that are alive and have the tags, or why there are too few.

    The first node of the list campaigns first. Nodes in `keep` hold a replica already: they are
    preferred, in their order, those alive first, and count even when they are disconnected."""
    why = NoPlacement()
    if placement is not None and placement.cluster and placement.cluster != view.cluster:
        why.elsewhere = placement.cluster
        return why
    wanted = placement.tags if placement is not None else ()
    kept = [node for node in keep if _has_tags(view.tags(node), wanted, NoPlacement())]
    chosen = [*filter(view.alive, kept), *(node for node in kept if not view.alive(node))]
    chosen = chosen[:replicas]
    taken = {tag for node in chosen for tag in _unique_tags(view, node)}

    def rank(node: NodeId) -> tuple[float, bytes]:
        return view.load(node), sha256(f"{name}:{node}".encode()).digest()

    for node in sorted((n for n in view.members if n not in keep), key=rank):
        if len(chosen) == replicas:
            break
        if not view.alive(node):
            why.offline = True
        elif _has_tags(view.tags(node), wanted, why):
            own = _unique_tags(view, node)
            if view.unique_tag and (not own or own & taken):
                why.not_unique = True
                if not own:
                    why.unlabeled.append(node)
            else:
                chosen.append(node)
                taken |= own
    return chosen if len(chosen) == replicas else why


def _has_tags(tags: Sequence[str], wanted: Sequence[str], why: NoPlacement) -> bool:
    """Whether a server with these tags has all wanted tags; the first that does not match is
    recorded in `why`. Tags are compared case-insensitively."""
    has = {tag.lower() for tag in tags}
    for tag in wanted:
        if tag.startswith(EXCLUDES):
            if tag[1:].lower() in has:
                why.excluded = True
                return False
        elif tag.lower() not in has:
            if tag not in why.missing:
                why.missing.append(tag)
            return False
    return True


def _unique_tags(view: PlacementView, node: NodeId) -> set[str]:
    prefix = view.unique_tag.lower()
    return {tag.lower() for tag in view.tags(node) if prefix and tag.lower().startswith(prefix)}
