"""Founding a cluster: which node founds, which follow, and what a crash must not change."""

from __future__ import annotations

import itertools
import logging
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from broker.cluster.meta.founding import (
    Bootstrap,
    BootstrapPeer,
    Founding,
    FoundingPromise,
    FoundingProposal,
    next_session,
)
from broker.cluster.node_files import DirectoryFiles
from raft import NodeId, node_id

# By node id, not by name: the smallest id founds.
NAMES = sorted((f"n{i}" for i in range(1, 6)), key=node_id)


class Crash(Exception):
    pass


@dataclass(slots=True)
class Node:
    """A node with a disk that survives its restarts. `expected`: the names that its routes lead to,
    without its own; None: not all are known yet."""

    name: str
    directory: Path
    expected: Sequence[str] | None
    incarnation: str = "1"
    network: dict[str, Node] = field(default_factory=dict)  # those that can be asked for a promise
    formed: list[Founding] = field(default_factory=list)
    formation: Bootstrap = field(init=False)

    def __post_init__(self) -> None:
        self.network[self.name] = self
        self.directory.mkdir(exist_ok=True)
        self.boot()

    def boot(self) -> None:
        """Start the process: load what is on disk, then start."""
        self.formed.clear()
        self.formation = Bootstrap(
            files=DirectoryFiles(self.directory),
            cluster="c",
            name=self.name,
            incarnation=self.incarnation,
            expected=self._expected,
            on_formed=self.formed.append,
        )
        self.formation.load()
        self.formation.start()

    def _expected(self) -> set[NodeId] | None:
        return None if self.expected is None else {node_id(name) for name in self.expected}

    def replace_disk(self) -> None:
        for file in self.directory.iterdir():
            file.unlink()
        self.incarnation += "'"
        self.boot()

    def sees(self, *others: Node) -> None:
        for other in others:
            self.formation.peer_seen(other.formation.as_peer())
            self.ask()

    def ask(self, *unreachable: str) -> None:
        """Collect the promises for what this node proposes, if it proposes something."""
        proposal = self.formation.proposal
        if proposal is None:
            return
        others = [name for name in proposal.founding.members if name != self.name]
        promised = [
            name not in unreachable and self.network[name].formation.promise(proposal)
            for name in others
        ]
        self.formation.decide(proposal, promised=all(promised))

    @property
    def founding(self) -> Founding | None:
        return self.formation.founding


def others(name: str, count: int = 3) -> list[str]:
    return [other for other in NAMES[:count] if other != name]


@pytest.fixture
def nodes(tmp_path: Path) -> list[Node]:
    network: dict[str, Node] = {}
    return [
        Node(name, tmp_path / name, expected=others(name), network=network) for name in NAMES[:3]
    ]


def all_of(*nodes: Node) -> dict[str, str]:
    return {node.name: node.incarnation for node in nodes}


def test_the_smallest_id_founds_and_the_others_follow(nodes: list[Node]) -> None:
    smallest, middle, largest = nodes
    for node in nodes:
        node.sees(*(other for other in nodes if other is not node))
    assert smallest.founding == Founding("c", all_of(*nodes))
    middle.sees(smallest)
    largest.sees(middle)  # any member can pass the record on
    assert middle.founding == largest.founding == smallest.founding
    assert all(node.formed == [smallest.founding] for node in nodes)
    assert smallest.founding.voters() == sorted(node_id(name) for name in NAMES[:3])


def test_no_other_node_founds_however_many_peers_it_sees(nodes: list[Node]) -> None:
    smallest, middle, largest = nodes
    for _ in range(3):
        middle.sees(smallest, largest)
        largest.sees(middle, smallest)
        middle.formation.consider()
    assert middle.founding is largest.founding is None


def test_too_few_nodes_wait(nodes: list[Node]) -> None:
    smallest, middle, largest = nodes
    smallest.sees(middle)
    for _ in range(10):
        smallest.formation.consider()
    assert smallest.founding is None
    smallest.formation.peer_lost(middle.name)
    smallest.sees(largest)  # two, but never three at a time
    assert smallest.founding is None
    assert not (smallest.directory / "founding.json").exists()


def test_no_node_is_a_substitute_for_one_that_the_routes_name(nodes: list[Node]) -> None:
    """Two nodes route to a third, which may have founded a cluster already."""
    smallest, middle, largest = nodes
    smallest.expected = middle.expected = [largest.name]
    smallest.sees(middle)
    middle.sees(smallest)
    for node in (smallest, middle):
        node.formation.consider()
        assert node.founding is None
    smallest.expected = None  # its route was never reached
    smallest.sees(middle)
    assert smallest.founding is None


def test_nodes_join_the_cluster_that_the_node_of_their_route_founded_alone(
    nodes: list[Node],
) -> None:
    smallest, middle, alone = nodes
    alone.expected = []  # its routes lead to itself only
    alone.formation.consider()
    for node, other in ((smallest, middle), (middle, smallest)):
        node.expected = [alone.name]
        node.sees(other, alone)
        assert node.founding is None
        assert node.formation.foreign == alone.founding


def test_a_route_to_the_node_itself_lowers_the_expected_number(nodes: list[Node]) -> None:
    smallest, middle, _ = nodes
    smallest.sees(middle)
    smallest.expected, middle.expected = [middle.name], [smallest.name]
    smallest.sees(middle)
    assert smallest.founding == Founding("c", all_of(smallest, middle))


def test_a_server_without_a_cluster_founds_alone(tmp_path: Path) -> None:
    node = Node("solo", tmp_path / "solo", expected=[])
    assert node.formed == [Founding("c", {"solo": "1"})]
    node.boot()
    assert node.formed == [Founding("c", {"solo": "1"})]


def test_a_node_keeps_its_founding(nodes: list[Node], caplog: pytest.LogCaptureFixture) -> None:
    smallest, middle, largest = nodes
    smallest.sees(middle, largest)
    ours = smallest.founding
    stranger = BootstrapPeer("x", "1", Founding("c", {"x": "1", smallest.name: "1"}))
    with caplog.at_level(logging.ERROR):
        smallest.formation.peer_seen(stranger)
    assert smallest.founding == ours
    assert f"node x belongs to a cluster founded by {sorted(['x', smallest.name])}" in caplog.text
    smallest.boot()
    smallest.sees(middle, largest)
    assert smallest.formed == [ours]


def test_a_crash_before_peers_know_of_the_founding_changes_nothing(nodes: list[Node]) -> None:
    """Written but not told to any peer: after the crash the founder uses the record on disk."""
    smallest, middle, largest = nodes

    def power_cut(_: Founding) -> None:
        raise Crash

    smallest.formation.on_formed = power_cut
    with pytest.raises(Crash):
        smallest.sees(middle, largest)
    middle.sees(largest)
    largest.sees(middle)
    assert middle.founding is largest.founding is None  # two of three keep waiting
    smallest.boot()
    founding = Founding("c", all_of(*nodes))
    assert smallest.formed == [founding]
    middle.sees(smallest)
    assert middle.formed == [founding]


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_a_crash_while_writing_leaves_no_founding(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    smallest, middle, largest = nodes

    def power_cut(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        owner: object = os if step == "fsync" else Path
        patch.setattr(owner, step, power_cut)
        with pytest.raises(Crash):
            smallest.sees(middle, largest)
    assert smallest.founding is None  # nothing may depend on a record that may not be on disk
    assert smallest.formed == []
    smallest.boot()
    assert smallest.founding is None
    smallest.sees(middle, largest)
    assert smallest.formed == [Founding("c", all_of(*nodes))]


def test_a_node_with_a_replaced_disk_is_not_a_member_until_it_was_let_in(
    nodes: list[Node],
) -> None:
    smallest, middle, largest = nodes
    smallest.sees(middle, largest)
    middle.sees(smallest)
    largest.sees(smallest)
    founding = smallest.founding
    assert founding is not None
    smallest.replace_disk()  # of the founder itself
    for _ in range(5):
        smallest.sees(middle, largest)
        smallest.formation.consider()
    assert smallest.founding is None
    assert smallest.formed == []
    assert smallest.formation.foreign == founding
    smallest.formation.adopt(founding)  # it was added to the table of nodes
    smallest.boot()
    assert smallest.formed == [founding]


def test_a_record_that_another_incarnation_adopted_is_void(nodes: list[Node]) -> None:
    """The database was replaced, the file next to it was not."""
    smallest, middle, largest = nodes
    smallest.sees(middle, largest)
    founding = smallest.founding
    smallest.incarnation = "2"
    smallest.boot()
    assert smallest.founding is None
    assert smallest.formed == []
    middle.sees(largest)
    smallest.formation.peer_seen(BootstrapPeer("x", "1", founding))
    assert smallest.formation.foreign == founding


@pytest.mark.parametrize(("incarnation", "valid"), [("1", True), ("2", False)])
def test_a_record_of_an_earlier_version_counts_for_the_incarnation_it_names(
    nodes: list[Node], incarnation: str, valid: bool
) -> None:
    node = nodes[0]
    old = {"cluster": "c", "members": {node.name: "1", "other": "1"}}
    (node.directory / "founding.json").write_bytes(msgspec.json.encode(old))
    node.incarnation = incarnation
    node.boot()
    assert (node.founding is not None) == valid
    if node.founding is not None:
        assert node.founding.voters() == sorted(map(node_id, (node.name, "other")))


def test_a_late_node_is_to_join(nodes: list[Node], tmp_path: Path) -> None:
    smallest, middle, largest = nodes
    smallest.sees(middle, largest)
    late = Node(NAMES[4], tmp_path / "late", expected=NAMES[:2])
    late.sees(smallest, smallest, middle)
    assert late.founding is None
    assert late.formation.foreign == smallest.founding
    assert late.formation.is_of(smallest.name, late.formation.foreign)
    assert not late.formation.is_of(middle.name, late.formation.foreign)  # it knows none yet


def test_a_node_whose_peers_belong_to_different_clusters_joins_none(
    nodes: list[Node], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    smallest, middle, largest = nodes
    smallest.sees(middle, largest)
    late = Node(NAMES[4], tmp_path / "late", expected=NAMES[:2])
    late.sees(smallest)
    assert late.formation.foreign is not None
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            late.formation.peer_seen(BootstrapPeer("stray", "1", Founding("c", {"stray": "1"})))
    assert late.formation.foreign is None
    assert caplog.text.count("belong to different clusters") == 1


def test_a_stray_founding_does_not_hide_the_own_one(nodes: list[Node]) -> None:
    smallest, middle, largest = nodes
    smallest.sees(middle, largest)
    stray = BootstrapPeer("stray", "1", Founding("c", {"stray": "1"}))
    middle.formation.peer_seen(stray)
    assert middle.founding is None
    middle.sees(smallest)
    assert middle.founding == smallest.founding


@pytest.mark.parametrize("seed", range(30))
def test_in_any_order_of_events_there_is_one_founding(tmp_path: Path, seed: int) -> None:
    """Links fail and recover, processes die between any two steps, also while writing."""
    dice = random.Random(seed)
    network: dict[str, Node] = {}
    nodes = [
        Node(name, tmp_path / name, expected=others(name, 5), network=network) for name in NAMES
    ]
    everything = Founding("c", all_of(*nodes))

    def step() -> None:
        node, other = dice.sample(nodes, 2)
        what = dice.random()
        if what < 0.6:
            node.sees(other)
        elif what < 0.8:
            node.formation.peer_lost(other.name)
        elif what < 0.95:
            node.boot()
        elif node.founding is None and node is nodes[0]:
            node.formation.on_formed = lambda _: node.boot()

    for _ in range(400):
        step()
        assert all(node.founding in (None, everything) for node in nodes), f"seed {seed}"
    for node in nodes:
        node.sees(*(other for other in nodes if other is not node))
    for node in nodes:
        node.sees(nodes[0])
    assert [node.founding for node in nodes] == [everything] * 5, f"seed {seed}"


def hub(tmp_path: Path) -> list[Node]:
    """Two nodes whose routes lead to a third one only, which has routes to both."""
    network: dict[str, Node] = {}
    first, second, middle = (
        Node(name, tmp_path / name, expected=None, network=network) for name in NAMES[:3]
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


def of(*nodes: Node) -> FoundingProposal:
    return FoundingProposal(Founding("c", all_of(*nodes)), nodes[0].name, 1)


def test_a_node_of_the_previous_version_is_not_asked_for_a_promise(nodes: list[Node]) -> None:
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
    network: dict[str, Node] = {}
    nodes = []
    for name in NAMES:
        routes = dice.sample(others(name, 5), dice.choice((1, 1, 1, 2)))
        nodes.append(Node(name, tmp_path / name, expected=routes, network=network))

    def step(node: Node, other: Node) -> None:
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


def is_torn(nodes: list[Node]) -> bool:
    """Clusters that were founded apart: a node that sees both joins none of them."""
    return len({node.founding.digest() for node in nodes if node.founding}) > 1


def check_apart(nodes: list[Node], seed: int) -> None:
    foundings = {node.founding.digest(): node.founding for node in nodes if node.founding}
    for one, other in itertools.combinations(foundings.values(), 2):
        assert not set(one.members) & set(other.members), f"seed {seed}"
        for node in nodes:
            routes = set(node.expected or ())
            assert node.name not in one.members or not routes & set(other.members), f"seed {seed}"


@pytest.mark.parametrize("damage", ["flip", "cut", "digit"])
def test_a_damaged_record_is_asked_for_again(
    nodes: list[Node], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = nodes
    for node in nodes:
        node.sees(*nodes)
    founding = second.founding
    assert founding is not None
    record = second.directory / "founding.json"
    content = record.read_bytes()
    match damage:
        case "flip":
            record.write_bytes(b"\x7f" + content[1:])
        case "cut":
            record.write_bytes(content[: len(content) // 2])
        case "digit":  # still a valid document
            record.write_bytes(content.replace(b'"1"', b'"3"', 1))
    second.boot()
    assert second.founding is None
    assert "founding.json is damaged" in caplog.text
    second.sees(first, third)
    assert second.founding == founding


def test_a_damaged_session_file_does_not_stop_a_node(tmp_path: Path) -> None:
    files = DirectoryFiles(tmp_path)
    first = next_session(files)
    files.write("session", b"17\xff")
    assert next_session(files) >= first
