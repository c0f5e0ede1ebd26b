"""Repair of the stream table: where replicas go when nodes drain, leave, are gone or return."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from broker.cluster.meta.assignments import (
    Assignment,
    AssignmentTable,
    AssignStream,
    MetaCommand,
    MoveReplicas,
    RecordMembers,
    RenewStream,
    encode_command,
)
from broker.cluster.meta.node_table import AddNode, SetStanding, Standing
from broker.cluster.meta.placement import NoPlacement, PlacementView, choose_peers
from broker.cluster.meta.repair import (
    MOVES_MAX,
    ClusterView,
    next_repairs,
    without_a_place,
    worth_a_look,
)
from broker.jetstream.config import StreamConfig
from broker.jetstream.config.stream_config import Placement
from broker.jetstream.errors import ErrCode, JetStreamError
from raft import Index, NodeId

A, B, C, D, E = (NodeId(n) for n in range(1, 6))
NEW_B = NodeId(22)


class World:
    """The table, and which nodes are up. Stream leaders move at once when they have a quorum."""

    def __init__(self, *nodes: NodeId) -> None:
        self.meta = AssignmentTable()
        self.meta.nodes.found({node: f"n{node}" for node in nodes})
        self.away: set[NodeId] = set()
        self.gone: set[NodeId] = set()
        self.lost: set[NodeId] = set()
        self.voters: set[NodeId] = set()  # of the meta group, if they delay a removal
        self.tags: dict[NodeId, list[str]] = {}
        self.unique_tag = ""

    def do(self, command: MetaCommand) -> object:
        return self.meta.apply(Index(self.meta.applied + 1), encode_command(command))[1]

    def stream(
        self, name: str, *peers: NodeId, replicas: int = 0, tags: Iterable[str] = ()
    ) -> None:
        config = StreamConfig(
            name=name, subjects=(name,), num_replicas=replicas or len(peers),
            placement=Placement(tags=tuple(tags)) if tags else None,
        )  # fmt: skip
        self.do(AssignStream("$G", config, 1, [int(peer) for peer in peers]))

    def get(self, name: str) -> Assignment:
        found = self.meta.get("$G", name)
        assert found is not None
        return found

    def view(self) -> PlacementView:
        return PlacementView(
            members=self.meta.nodes.placeable(),
            alive=lambda node: node not in self.away,
            load=self.meta.load,
            tags=lambda node: self.tags.get(node, []),
            unique_tag=self.unique_tag,
        )

    def cluster(self) -> ClusterView:
        return ClusterView(
            self.view(),
            gone=lambda node: node in self.gone,
            lost=lambda node: node in self.lost,
            votes=lambda node: node in self.voters,
            now_ns=9,
        )

    def stuck(self) -> list[str]:
        return without_a_place(self.meta, self.meta.nodes, self.cluster(), lambda n: f"n{n}")

    def repairs(self) -> list[MetaCommand]:
        view = self.cluster()
        table, nodes = self.meta, self.meta.nodes
        few = next_repairs(worth_a_look(table, table.sums, nodes, view), nodes, view)
        everywhere = next_repairs(table, nodes, view)
        assert len(few) == len(everywhere), "a stream that needs a repair was passed over"
        return few

    def lead(self) -> None:
        """What the leaders of the streams do."""
        for one in self.meta:
            up = sum(NodeId(member) not in self.away for member in one.members)
            ready = all(NodeId(peer) not in self.away for peer in one.peers)
            if 2 * up > len(one.members) and ready:
                self.do(RecordMembers(one.account, one.name, one.group, one.peers, one.peers))

    def settle(self) -> None:
        for _ in range(50):
            self.lead()
            commands = self.repairs()
            if not commands:
                return
            for command in commands:
                self.do(command)
        pytest.fail(f"it does not settle: {commands}")


def test_nothing_to_do() -> None:
    world = World(A, B, C)
    world.stream("S", A, B, C)
    world.away = {C}
    assert world.repairs() == []


def test_a_replica_whose_zone_has_no_spare_node_is_told() -> None:
    world = World(A, B, C, D)
    world.unique_tag = "az:"
    world.tags = {A: ["az:1"], B: ["az:2"], C: ["az:3"], D: ["az:1"]}
    world.stream("S", A, B, C)
    world.away = {C}
    assert world.stuck() == []  # it may return
    world.gone = {C}
    assert world.repairs() == []
    reason = "no suitable peers for placement, peer offline, server tag not unique"
    assert world.stuck() == [f"stream S has a replica on n3 that no other node can take: {reason}"]
    for name in "TUVW":
        world.stream(name, A, B, C)
    assert world.stuck() == [
        f"5 streams (S, T, U, ...) have a replica on n3 that no other node can take: {reason}"
    ]
    world.tags[D] = ["az:3"]
    assert world.stuck() == []
    assert len(world.repairs()) == 5


def test_a_stream_with_too_few_replicas_is_told() -> None:
    world = World(A, B)
    world.stream("S", A, B, replicas=3)
    assert world.stuck() == [
        "stream S has fewer replicas than wanted, which no other node can take: "
        "no suitable peers for placement"
    ]


def test_a_connected_node_that_the_table_does_not_know_keeps_its_replicas() -> None:
    world = World(A, B)
    world.stream("S", A, B, C)
    assert world.repairs() == []
    world.away = {C}
    assert world.repairs() != []


def test_replicas_of_a_leaving_node_move_to_a_spare_one_and_it_is_removed() -> None:
    world = World(A, B, C, D)
    world.stream("S", A, B, C)
    world.do(SetStanding(B, Standing.LEAVING, 5))
    stream = world.get("S")
    move = MoveReplicas("$G", "S", stream.group, [A, B, C], [A, C, D], 9)
    assert world.repairs() == [move]
    world.do(move)
    assert world.repairs() == []  # its replica is still needed
    assert not world.meta.nodes.is_removed(B)
    world.settle()
    assert world.get("S").members == [A, C, D]
    assert world.meta.nodes.is_removed(B)


def test_a_leaving_node_is_not_removed_while_it_has_a_vote() -> None:
    """A removed node closes its groups at once: the others would need every vote."""
    world = World(A, B, C, D)
    world.do(SetStanding(D, Standing.LEAVING, 5))
    world.voters = {A, B, C, D}
    assert world.repairs() == []
    world.voters = {A, B, C}
    assert world.repairs() == [SetStanding(D, Standing.REMOVED, 9)]


def test_without_a_spare_node_a_stream_goes_on_with_fewer_until_one_joins() -> None:
    world = World(A, B, C)
    world.stream("S", A, B, C)
    world.do(SetStanding(B, Standing.LEAVING, 5))
    world.settle()
    assert world.get("S").peers == [A, C]
    assert world.meta.nodes.is_removed(B)
    world.do(AddNode(D, "d", 7))
    world.settle()
    assert world.get("S").peers == [A, C, D]


def test_a_draining_node_keeps_what_no_other_can_hold() -> None:
    world = World(A, B, C)
    world.stream("S", A, B, C)
    world.stream("ONE", B)
    world.do(SetStanding(B, Standing.DRAINING, 5))
    world.settle()
    assert world.get("S").peers == [A, B, C]
    assert world.get("ONE").peers != [B]
    assert not world.meta.nodes.is_removed(B)


def test_a_node_that_is_gone_for_long_is_replaced_if_there_is_another() -> None:
    world = World(A, B, C)
    world.stream("S", A, B, C)
    world.away = world.gone = {B}
    assert world.repairs() == []  # nowhere to go
    world.do(AddNode(D, "d", 7))
    world.settle()
    assert world.get("S").peers == [A, C, D]
    assert not world.meta.nodes.is_removed(B)  # it may return


def test_a_stream_without_a_quorum_stays_where_it_is() -> None:
    world = World(A, B, C, D)
    world.stream("S", A, B, C)
    world.stream("ONE", B)
    world.away = world.gone = {B, C}
    assert world.repairs() == []


def test_a_stream_on_one_lost_disk_starts_again_empty() -> None:
    world = World(A, B, C)
    world.stream("ONE", B)
    world.away = {B}
    assert world.repairs() == []  # it may return with its disk
    world.do(AddNode(NEW_B, "n2", 7))
    before = world.get("ONE")
    assert world.repairs() == [RenewStream("$G", "ONE", before.group, [B])]
    world.settle()
    assert world.get("ONE").group != before.group
    assert world.get("ONE").members == [NEW_B]


def test_a_stream_with_one_living_member_is_never_emptied() -> None:
    world = World(A, B, C)
    world.stream("S", A, B, C)
    world.do(AddNode(22, "n2", 7))
    world.do(AddNode(33, "n3", 8))
    world.away = {B, C}
    assert not any(isinstance(command, RenewStream) for command in world.repairs())


def test_a_dead_node_that_is_removed_takes_its_only_replicas_with_it() -> None:
    world = World(A, B, C)
    world.stream("ONE", B)
    world.away = world.lost = {B}
    world.do(SetStanding(B, Standing.LEAVING, 5))
    before = world.get("ONE").group
    world.settle()
    assert world.get("ONE").group != before
    assert world.meta.nodes.is_removed(B)


def test_a_short_absence_of_a_node_that_leaves_costs_no_messages() -> None:
    world = World(A, B, C)
    world.stream("ONE", B)
    world.away = {B}
    world.do(SetStanding(B, Standing.LEAVING, 5))
    before = world.get("ONE").group
    world.settle()
    assert world.get("ONE").group == before, "its messages would be lost"
    assert not world.meta.nodes.is_removed(B)
    world.away = set()
    world.settle()
    assert world.get("ONE").group == before
    assert B not in world.get("ONE").peers
    assert world.meta.nodes.is_removed(B)


def test_few_streams_move_at_a_time() -> None:
    world = World(A, B, C, D)
    for number in range(3 * MOVES_MAX):
        world.stream(f"S{number}", A, B, C)
    world.do(SetStanding(B, Standing.LEAVING, 5))
    moves = world.repairs()
    assert len(moves) == MOVES_MAX
    for move in moves:
        world.do(move)
    assert world.repairs() == []
    world.settle()
    assert world.meta.nodes.is_removed(B)


def test_a_replacement_has_the_tags_of_the_placement() -> None:
    world = World(A, B, C, D, E)
    world.tags = {A: ["ssd"], B: ["ssd"], C: ["ssd"], D: ["hdd"], E: ["SSD"]}
    world.stream("S", A, B, C, tags=["ssd"])
    world.do(SetStanding(B, Standing.LEAVING, 5))
    world.settle()
    assert world.get("S").peers == [A, C, E]


def test_nodes_leave_one_after_the_other_and_two_stay() -> None:
    world = World(A, B, C)
    world.stream("S", A, B, C)
    world.do(SetStanding(B, Standing.LEAVING, 5))
    second = world.do(SetStanding(C, Standing.LEAVING, 6))
    assert isinstance(second, JetStreamError)
    assert second.err_code is ErrCode.CLUSTER_SERVER_MEMBER_CHANGE_INFLIGHT
    world.settle()
    last = world.do(SetStanding(C, Standing.LEAVING, 7))
    assert isinstance(last, JetStreamError)
    assert "a cluster needs 2 nodes" in last.description


@pytest.mark.parametrize("seed", range(100))
def test_every_history_settles_with_all_replicas_on_members(seed: int) -> None:
    dice = random.Random(seed)
    world = World(A, B, C, D)
    for number in range(12):
        replicas = dice.choice([1, 2, 3, 3])
        world.stream(f"S{number}", *dice.sample([A, B, C, D], replicas))
    numbers = iter(range(100, 200))
    for time in range(12):
        records = world.meta.nodes.present()
        record = dice.choice(records)
        what = dice.random()
        if what < 0.3:
            world.do(AddNode(next(numbers), f"m{time}", time))
        elif what < 0.5 and len(records) > 3:
            world.do(SetStanding(record.node, Standing.LEAVING, time))
        elif what < 0.7:
            world.do(SetStanding(record.node, dice.choice([Standing.DRAINING, Standing.MEMBER]), 1))
        else:
            world.do(AddNode(next(numbers), record.name, time))
        if dice.random() < 0.7:
            world.settle()
    world.settle()
    members = {record.node for record in world.meta.nodes.present()}
    for one in world.meta:
        assert set(one.peers) <= members, f"seed {seed}: {one.name}"
        assert len(set(one.peers)) == len(one.peers) == min(one.config.num_replicas, len(one.peers))
        assert one.peers, f"seed {seed}"


# -- tags ----------------------------------------------------------------------------------------

TAGS = {A: ["az:1", "ssd"], B: ["az:1", "hdd"], C: ["az:2", "ssd"], D: ["az:3", "SSD", "gpu"]}


@pytest.mark.parametrize(
    ("replicas", "tags", "unique", "expected"),
    [
        (1, ("gpu",), "", {D}),
        (3, ("ssd",), "", {A, C, D}),
        (1, ("Ssd", "gpu"), "", {D}),
        (1, ("!ssd",), "", {B}),
        (3, (), "az:", {A, C, D}),
        (3, ("hdd",), "", "no suitable peers for placement, tags not matched ['hdd']"),
        (1, ("a", "b"), "", "no suitable peers for placement, tags not matched ['a']"),
        (4, (), "az:", "no suitable peers for placement, server tag not unique"),
        (2, ("!ssd",), "", "no suitable peers for placement, exclude tag set"),
        (5, (), "", "no suitable peers for placement"),
    ],
)  # fmt: skip
def test_tags_decide_as_with_nats_server(
    replicas: int, tags: tuple[str, ...], unique: str, expected: object
) -> None:
    view = PlacementView(
        members=[A, B, C, D], alive=lambda _: True, load=lambda node: 1 if node == B else 0,
        tags=lambda node: TAGS[node], unique_tag=unique, cluster="c",
    )  # fmt: skip
    placement = Placement(tags=tags) if tags else None
    found = choose_peers(view, name="S", replicas=replicas, placement=placement)
    assert (str(found) if isinstance(found, NoPlacement) else set(found)) == expected


def test_a_node_without_the_unique_tag_gets_no_replicas() -> None:
    view = PlacementView(
        members=[A, B], alive=lambda _: True, load=lambda _: 0,
        tags=lambda node: ["az:1"] if node == A else [], unique_tag="az:",
    )  # fmt: skip
    assert choose_peers(view, name="S", replicas=1) == [A]
    refused = choose_peers(view, name="S", replicas=2)
    assert isinstance(refused, NoPlacement)
    assert refused.sentence("az:", lambda node: f"n{node}") == (
        "no suitable peers for placement, server tag not unique (no tag 'az:...' on n2)"
    )


def test_another_cluster_has_no_peers() -> None:
    view = PlacementView(members=[A], alive=lambda _: True, load=lambda _: 0, cluster="c")
    here = choose_peers(view, name="S", replicas=1, placement=Placement("c"))
    assert here == [A]
    elsewhere = choose_peers(view, name="S", replicas=1, placement=Placement("other"))
    assert isinstance(elsewhere, NoPlacement)
    assert elsewhere.sentence("", str) == (
        "no suitable peers for placement, no server is in cluster 'other'"
    )
