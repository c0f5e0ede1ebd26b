"""Promises of founders: two foundings have no member in common, whatever the routes."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import msgspec
import pytest

from broker.cluster.meta.founding import (
    BootstrapPeer,
    Founding,
    FoundingPromise,
    FoundingProposal,
)
from tests.support.founding_nodes import NAMES, FoundingNode, all_of, others


def hub(tmp_path: Path) -> list[FoundingNode]:
    """Two nodes whose routes lead to a third one only, which has routes to both."""
    network: dict[str, FoundingNode] = {}
    first, second, middle = (
        FoundingNode(name, tmp_path / name, expected=None, network=network) for name in NAMES[:3]
    )
    first.expected = second.expected = [middle.name]
    middle.expected = [first.name, second.name]
    return [first, second, middle]


def test_two_nodes_with_one_common_route_do_not_found_twice(tmp_path: Path) -> None:
    """Each is the smallest that it sees and sees all that its routes name: only the node in the
    middle knows that there is another."""
    first, second, middle = hub(tmp_path)
    first.sees(middle)
    second.sees(middle)
    assert first.founding is second.founding is None
    first.sees(second, middle)
    assert first.founding == Founding("c", all_of(first, second, middle))


def test_a_node_promises_one_proposer_only_also_after_a_restart(tmp_path: Path) -> None:
    first, second, middle = hub(tmp_path)
    middle.expected = []  # it knows of nobody: any list with its name will do
    first.formation.peer_seen(middle.formation.as_peer())
    second.formation.peer_seen(middle.formation.as_peer())
    proposed = first.formation.proposal
    assert proposed is not None
    assert middle.formation.promise(proposed)
    middle.boot()
    middle.expected = []
    second.ask()
    assert second.founding is None
    first.formation.decide(proposed, promised=True)
    middle.sees(first)
    assert middle.founding == first.founding == Founding("c", all_of(first, middle))
    second.sees(middle)
    assert second.formation.foreign == first.founding


@pytest.mark.parametrize("end", ["withdrawn", "restarted", "replaced"])
def test_a_promise_ends_when_its_proposal_can_never_be_a_founding(tmp_path: Path, end: str) -> None:
    first, second, middle = hub(tmp_path)
    first.formation.peer_seen(middle.formation.as_peer())
    proposed = msgspec.structs.replace(of(first, middle), number=7)
    middle.expected = []
    assert middle.formation.promise(proposed)
    middle.sees(first)  # has not proposed it yet, as far as it says
    middle.formation.peer_lost(first.name)
    assert not middle.formation.promise(of(second, middle))
    match end:
        case "withdrawn":
            middle.formation.peer_seen(
                msgspec.structs.replace(first.formation.as_peer(), withdrawn=7)
            )
        case "restarted":  # having proposed it
            first.formation.files.write(
                "founding-promise.json", msgspec.json.encode(FoundingPromise("1", proposed=7))
            )
            first.boot()
            middle.sees(first)
        case "replaced":
            first.replace_disk()
            middle.sees(first)
    middle.formation.peer_lost(first.name)
    assert middle.formation.promise(of(second, middle))


def test_a_node_promises_no_list_without_everybody_that_it_knows(tmp_path: Path) -> None:
    first, second, middle = hub(tmp_path)
    assert not middle.formation.promise(of(first, middle))  # a route leads to the second one
    middle.expected = []
    middle.formation.peer_seen(second.formation.as_peer())
    assert not middle.formation.promise(of(first, middle))
    middle.formation.peer_lost(second.name)
    middle.expected = None
    assert not middle.formation.promise(of(first, middle))
    middle.expected = []
    assert not middle.formation.promise(of(first, second)), "it is not in the list"
    assert middle.formation.promise(of(first, middle))


def test_a_node_that_has_promised_joins_no_other_cluster(tmp_path: Path) -> None:
    first, _second, middle = hub(tmp_path)
    middle.expected = []
    assert middle.formation.promise(of(first, middle))
    middle.formation.peer_seen(BootstrapPeer("x", "1", Founding("c", {"x": "1"})))
    assert middle.formation.foreign is None
    founding = of(first, middle).founding
    middle.formation.peer_seen(BootstrapPeer(first.name, "1", founding))
    assert middle.founding == founding


def test_a_damaged_promise_is_kept_until_a_founding_names_the_node(tmp_path: Path) -> None:
    first, _second, middle = hub(tmp_path)
    middle.formation.files.write("founding-promise.json", b'{"by":"1"\n00000000')
    middle.boot()
    middle.expected = []
    assert not middle.formation.promise(of(first, middle))
    middle.formation.peer_seen(BootstrapPeer(first.name, "1", of(first, middle).founding))
    assert middle.founding is not None


def of(*nodes: FoundingNode) -> FoundingProposal:
    return FoundingProposal(Founding("c", all_of(*nodes)), nodes[0].name, 1)


def test_a_node_of_the_previous_version_is_not_asked_for_a_promise(tmp_path: Path) -> None:
    nodes = [FoundingNode(name, tmp_path / name, expected=others(name)) for name in NAMES[:3]]
    smallest, middle, largest = nodes
    for old in (middle, largest):
        smallest.formation.peer_seen(BootstrapPeer(old.name, "1"))
    assert smallest.founding == Founding("c", all_of(*nodes))


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_routes_two_foundings_have_no_member_and_no_route_in_common(
    tmp_path: Path, seed: int
) -> None:
    """Any routes, links that come and go, lost answers, restarts between any two steps."""
    dice = random.Random(seed)
    network: dict[str, FoundingNode] = {}
    nodes = []
    for name in NAMES:
        routes = dice.sample(others(name, 5), dice.choice((1, 1, 1, 2)))
        nodes.append(FoundingNode(name, tmp_path / name, expected=routes, network=network))

    def step(node: FoundingNode, other: FoundingNode) -> None:
        what = dice.random()
        if what < 0.5:
            node.formation.peer_seen(other.formation.as_peer())
        elif what < 0.8:
            node.ask(*([other.name] if dice.random() < 0.3 else []))
        elif what < 0.9:
            node.formation.peer_lost(other.name)
        else:
            node.boot()

    for _ in range(400):
        node, other = dice.sample(nodes, 2)
        step(node, other)
        check_apart(nodes, seed)
    for _ in range(20):  # now everybody reaches everybody: no promise may keep them waiting
        for node in nodes:
            node.sees(*(other for other in nodes if other is not node))
    check_apart(nodes, seed)
    assert any(node.founding is not None for node in nodes), f"seed {seed}"
    for node in nodes:
        assert node.founding or node.formation.foreign or is_torn(nodes), f"seed {seed}"


def is_torn(nodes: list[FoundingNode]) -> bool:
    """Clusters that were founded apart: a node that sees both joins none of them."""
    return len({node.founding.digest() for node in nodes if node.founding}) > 1


def check_apart(nodes: list[FoundingNode], seed: int) -> None:
    foundings = {node.founding.digest(): node.founding for node in nodes if node.founding}
    for one, other in itertools.combinations(foundings.values(), 2):
        assert not set(one.members) & set(other.members), f"seed {seed}"
        for node in nodes:
            routes = set(node.expected or ())
            assert node.name not in one.members or not routes & set(other.members), f"seed {seed}"
