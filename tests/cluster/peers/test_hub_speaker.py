"""Which node speaks to a hub: one, of those that can, after a moment of silence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from broker.cluster.peers.hub_speaker import FACT, HubConnection, HubSpeaker
from broker.subjects import SinkKind
from raft import NodeId
from raft.transport.transport import Peer


class Link:
    """A connection to a hub."""

    def __init__(self, hub: str = "H", account: str = "A", *, cluster: str = "") -> None:
        self.remote_id = hub
        self.sink: Any = SimpleNamespace(
            kind=SinkKind.HUB,
            cluster=cluster,
            account=SimpleNamespace(name=account),
            speaks=True,
        )

    def speak(self, *, on: bool) -> None:
        self.sink.speaks = on


@dataclass
class Nodes:
    """One node of three, and what it knows of the others."""

    node: NodeId
    known: dict[int, list[str]]  # connected peers, and the hubs they told of
    told: list[str] = field(default_factory=list)
    due: list[Callable[[], None]] = field(default_factory=list)
    speaker: HubSpeaker = field(init=False)

    def __post_init__(self) -> None:
        self.speaker = HubSpeaker(self, lambda: [NodeId(one) for one in (1, 2, 3)], self.later)

    def later(self, _seconds: float, act: Callable[[], None]) -> Any:
        self.due.append(act)
        return SimpleNamespace(cancel=lambda: self.due.remove(act) if act in self.due else None)

    def settle(self) -> None:
        due, self.due[:] = list(self.due), []
        for act in due:
            act()

    def peers(self) -> list[Peer]:
        found = [
            SimpleNamespace(node=NodeId(node), connected=True, hello={FACT: hubs})
            for node, hubs in self.known.items()
        ]
        return cast(list[Peer], found)

    def tell(self, **facts: Any) -> None:
        self.told = facts[FACT]

    def connected(self, node: NodeId) -> bool:
        return node == self.node or node in self.known

    def link(self, link: Link) -> Link:
        self.speaker.leaf_connected(cast(HubConnection, link))
        return link


def test_a_new_connection_is_silent_first() -> None:
    nodes = Nodes(NodeId(1), {2: [], 3: []})
    link = nodes.link(Link())
    assert nodes.told == ["A H"]
    assert not link.sink.speaks
    nodes.settle()
    assert link.sink.speaks


def test_the_lowest_node_that_is_connected_to_the_same_hub_speaks() -> None:
    nodes = Nodes(NodeId(2), {1: ["A H"], 3: ["A H"]})
    link = nodes.link(Link())
    elsewhere = nodes.link(Link("OTHER"))
    nodes.settle()
    assert (link.sink.speaks, elsewhere.sink.speaks) == (False, True)
    nodes.known[1] = []  # it has lost its connection
    nodes.speaker.review()
    assert not link.sink.speaks
    nodes.settle()
    assert link.sink.speaks
    nodes.known[1] = ["A H"]
    nodes.speaker.review()
    assert not link.sink.speaks, "at once: nobody speaks before the other begins"


def test_nodes_of_a_hub_cluster_are_one_hub() -> None:
    nodes = Nodes(NodeId(2), {1: ["A C"], 3: []})
    link = nodes.link(Link("H2", cluster="C"))
    nodes.settle()
    assert not link.sink.speaks


def test_a_node_without_a_majority_is_silent() -> None:
    nodes = Nodes(NodeId(1), {2: [], 3: []})
    link = nodes.link(Link())
    nodes.settle()
    del nodes.known[3]
    nodes.speaker.review()
    assert link.sink.speaks
    del nodes.known[2]
    nodes.speaker.review()
    assert not link.sink.speaks
    assert not nodes.due


def test_a_choice_that_ended_before_the_pause_was_over_is_forgotten() -> None:
    nodes = Nodes(NodeId(2), {1: [], 3: []})
    link = nodes.link(Link())
    nodes.known[1] = ["A H"]
    nodes.speaker.review()
    nodes.settle()
    assert not link.sink.speaks


def test_what_is_no_hub_is_left_alone_and_a_closed_connection_is_not_told() -> None:
    nodes = Nodes(NodeId(1), {2: [], 3: []})
    leaf = Link()
    leaf.sink.kind = SinkKind.LEAF
    nodes.link(leaf)
    assert leaf.sink.speaks
    assert nodes.told == []
    link = nodes.link(Link())
    nodes.speaker.leaf_disconnected(cast(HubConnection, link))
    assert nodes.told == []
    nodes.settle()
    assert not link.sink.speaks


def test_a_peer_that_tells_nonsense_is_not_believed() -> None:
    nodes = Nodes(NodeId(2), {1: cast(Any, 7), 3: []})
    link = nodes.link(Link())
    nodes.settle()
    assert link.sink.speaks
