"""Founding a cluster: which node founds, which follow, and what a crash must not change."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path

import msgspec
import pytest

from broker.cluster.meta.founding import BootstrapPeer, Founding, next_session
from broker.cluster.node_files import DirectoryFiles
from raft import node_id
from tests.support.founding_nodes import NAMES, FoundingNode, all_of, others


class Crash(Exception):
    pass


@pytest.fixture
def nodes(tmp_path: Path) -> list[FoundingNode]:
    network: dict[str, FoundingNode] = {}
    return [
        FoundingNode(name, tmp_path / name, expected=others(name), network=network)
        for name in NAMES[:3]
    ]


def test_the_smallest_id_founds_and_the_others_follow(nodes: list[FoundingNode]) -> None:
    smallest, middle, largest = nodes
    for node in nodes:
        node.sees(*(other for other in nodes if other is not node))
    assert smallest.founding == Founding("c", all_of(*nodes))
    middle.sees(smallest)
    largest.sees(middle)  # any member can pass the record on
    assert middle.founding == largest.founding == smallest.founding
    assert all(node.formed == [smallest.founding] for node in nodes)
    assert smallest.founding.voters() == sorted(node_id(name) for name in NAMES[:3])


def test_no_other_node_founds_however_many_peers_it_sees(nodes: list[FoundingNode]) -> None:
    smallest, middle, largest = nodes
    for _ in range(3):
        middle.sees(smallest, largest)
        largest.sees(middle, smallest)
        middle.formation.consider()
    assert middle.founding is largest.founding is None


def test_too_few_nodes_wait(nodes: list[FoundingNode]) -> None:
    smallest, middle, largest = nodes
    smallest.sees(middle)
    for _ in range(10):
        smallest.formation.consider()
    assert smallest.founding is None
    smallest.formation.peer_lost(middle.name)
    smallest.sees(largest)  # two, but never three at a time
    assert smallest.founding is None
    assert not (smallest.directory / "founding.json").exists()


def test_no_node_is_a_substitute_for_one_that_the_routes_name(nodes: list[FoundingNode]) -> None:
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
    nodes: list[FoundingNode],
) -> None:
    smallest, middle, alone = nodes
    alone.expected = []  # its routes lead to itself only
    alone.formation.consider()
    for node, other in ((smallest, middle), (middle, smallest)):
        node.expected = [alone.name]
        node.sees(other, alone)
        assert node.founding is None
        assert node.formation.foreign == alone.founding


def test_a_route_to_the_node_itself_lowers_the_expected_number(nodes: list[FoundingNode]) -> None:
    smallest, middle, _ = nodes
    smallest.sees(middle)
    smallest.expected, middle.expected = [middle.name], [smallest.name]
    smallest.sees(middle)
    assert smallest.founding == Founding("c", all_of(smallest, middle))


def test_a_server_without_a_cluster_founds_alone(tmp_path: Path) -> None:
    node = FoundingNode("solo", tmp_path / "solo", expected=[])
    assert node.formed == [Founding("c", {"solo": "1"})]
    node.boot()
    assert node.formed == [Founding("c", {"solo": "1"})]


def test_a_node_keeps_its_founding(
    nodes: list[FoundingNode], caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_crash_before_peers_know_of_the_founding_changes_nothing(
    nodes: list[FoundingNode],
) -> None:
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
    nodes: list[FoundingNode], monkeypatch: pytest.MonkeyPatch, step: str
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
    nodes: list[FoundingNode],
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


def test_a_record_that_another_incarnation_adopted_is_void(nodes: list[FoundingNode]) -> None:
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
    nodes: list[FoundingNode], incarnation: str, valid: bool
) -> None:
    node = nodes[0]
    old = {"cluster": "c", "members": {node.name: "1", "other": "1"}}
    (node.directory / "founding.json").write_bytes(msgspec.json.encode(old))
    node.incarnation = incarnation
    node.boot()
    assert (node.founding is not None) == valid
    if node.founding is not None:
        assert node.founding.voters() == sorted(map(node_id, (node.name, "other")))


def test_a_late_node_is_to_join(nodes: list[FoundingNode], tmp_path: Path) -> None:
    smallest, middle, largest = nodes
    smallest.sees(middle, largest)
    late = FoundingNode(NAMES[4], tmp_path / "late", expected=NAMES[:2])
    late.sees(smallest, smallest, middle)
    assert late.founding is None
    assert late.formation.foreign == smallest.founding
    assert late.formation.is_of(smallest.name, late.formation.foreign)
    assert not late.formation.is_of(middle.name, late.formation.foreign)  # it knows none yet


def test_a_node_whose_peers_belong_to_different_clusters_joins_none(
    nodes: list[FoundingNode], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    smallest, middle, largest = nodes
    smallest.sees(middle, largest)
    late = FoundingNode(NAMES[4], tmp_path / "late", expected=NAMES[:2])
    late.sees(smallest)
    assert late.formation.foreign is not None
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            late.formation.peer_seen(BootstrapPeer("stray", "1", Founding("c", {"stray": "1"})))
    assert late.formation.foreign is None
    assert caplog.text.count("belong to different clusters") == 1


def test_a_stray_founding_does_not_hide_the_own_one(nodes: list[FoundingNode]) -> None:
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
    network: dict[str, FoundingNode] = {}
    nodes = [
        FoundingNode(name, tmp_path / name, expected=others(name, 5), network=network)
        for name in NAMES
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


@pytest.mark.parametrize("damage", ["flip", "cut", "digit"])
def test_a_damaged_record_is_asked_for_again(
    nodes: list[FoundingNode], damage: str, caplog: pytest.LogCaptureFixture
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
