"""The table of streams: the same commands build the same table on every node."""

from __future__ import annotations

import random
import time

import msgspec
import pytest

from broker.cluster.meta.assignments import (
    FIRST_STREAM_GROUP,
    Assignment,
    AssignmentTable,
    AssignStream,
    MetaCommand,
    MetaResult,
    ReconfigureStream,
    RemoveStream,
    encode_command,
)
from broker.cluster.meta.feature_level import RaiseLevel
from broker.cluster.meta.placement import NoPlacement, PlacementView, choose_peers
from broker.jetstream.config import StreamConfig
from broker.jetstream.config.stream_config import (
    Compression,
    Discard,
    External,
    Placement,
    Republish,
    Retention,
    Storage,
    StreamSource,
    SubjectTransform,
)
from broker.jetstream.errors import JetStreamError
from raft import Index, NodeId, node_id

PEERS = [3, 1, 2]


class Log:
    """Applies commands to one table, one index after another."""

    def __init__(self) -> None:
        self.meta = AssignmentTable()
        self.entries: list[bytes] = []

    def apply(self, command: MetaCommand) -> MetaResult:
        self.entries.append(encode_command(command))
        applied, result = self.meta.apply(Index(len(self.entries)), self.entries[-1])
        assert applied == command
        return result

    def assign(
        self,
        name: str,
        *subjects: str,
        account: str = "$G",
        created_ns: int = 77,
        **fields: object,
    ) -> MetaResult:
        config = StreamConfig(name=name, subjects=subjects, **fields)  # type: ignore[arg-type]
        return self.apply(AssignStream(account, config, created_ns=created_ns, peers=PEERS))

    def reconfigure(self, name: str, *subjects: str, account: str = "$G") -> MetaResult:
        return self.apply(ReconfigureStream(account, StreamConfig(name=name, subjects=subjects)))

    def remove(self, name: str, account: str = "$G") -> MetaResult:
        return self.apply(RemoveStream(account, name))


def refused(result: MetaResult) -> int:
    assert isinstance(result, JetStreamError)
    return int(result.err_code)


def assigned(result: MetaResult) -> Assignment:
    assert isinstance(result, Assignment)
    return result


def test_a_stream_is_assigned() -> None:
    log = Log()
    result = assigned(log.assign("ORDERS", "orders.>", num_replicas=3))
    assert result == log.meta.get("$G", "ORDERS")
    assert (result.name, result.created_ns, result.peers) == ("ORDERS", 77, PEERS)
    assert result.group == FIRST_STREAM_GROUP + 1
    assert log.meta.get("$G", "OTHER") is log.meta.get("A", "ORDERS") is None
    assert log.meta.applied == 1
    assert len(log.meta) == 1


def test_creating_again_succeeds_only_with_an_equal_configuration() -> None:
    log = Log()
    first = assigned(log.assign("S", "s"))
    assert log.assign("S", "s") == first  # the same group: nothing new was created
    assert refused(log.assign("S", "s", "t")) == 10058
    assert log.meta.get("$G", "S") == first


@pytest.mark.parametrize("subject", ["orders.new", "orders.*", "orders.>", ">", "*.new"])
def test_two_streams_may_not_capture_the_same_subject(subject: str) -> None:
    log = Log()
    log.assign("ORDERS", "other", "orders.*")
    assert refused(log.assign("B", "fine", subject)) == 10065
    assert log.meta.get("$G", "B") is None
    assigned(log.assign("B", subject, account="A"))  # accounts are separate
    assigned(log.assign("C", "orders.a.b"))
    assert refused(log.reconfigure("C", "orders.a")) == 10065
    assert assigned(log.meta.get("$G", "C")).config.subjects == ("orders.a.b",)  # type: ignore[arg-type]


def test_an_update_keeps_everything_but_the_configuration() -> None:
    log = Log()
    before = assigned(log.assign("S", "s.a"))
    after = assigned(log.reconfigure("S", "s.a", "s.b"))  # its own subjects do not collide
    expected = {"config": after.config, "first_config": before.config, "changed": 2}
    assert after == msgspec.structs.replace(before, **expected)
    assert after.config.subjects == ("s.a", "s.b")
    assert log.meta.get("$G", "S") == after
    assert refused(log.reconfigure("NONE", "x")) == 10059


def test_a_stream_created_again_is_a_new_group() -> None:
    log = Log()
    first = assigned(log.assign("S", "s"))
    assert log.remove("S") == first
    assert refused(log.remove("S")) == 10059
    again = assigned(log.assign("S", "s"))
    assert again.group > first.group
    assert again.group == FIRST_STREAM_GROUP + 4


def test_a_late_delete_spares_the_stream_that_was_created_since() -> None:
    log = Log()
    log.apply(RaiseLevel(1))
    first = assigned(log.assign("S", "s.*", created_ns=1))
    delete = RemoveStream("$G", "S", first.created_ns)
    assert log.apply(delete) == first
    second = assigned(log.assign("S", "s.*", created_ns=2))
    assert refused(log.apply(delete)) == 10059  # a repeat, or one that was long on its way
    assert log.meta.get("$G", "S") == second
    assert log.apply(RemoveStream("$G", "S")) == second


def test_listing_is_by_account_and_name() -> None:
    log = Log()
    for name, account in (("B", "$G"), ("A", "$G"), ("C", "X")):
        log.assign(name, name, account=account)
    assert [a.name for a in log.meta.of_account("$G")] == ["A", "B"]
    assert [a.name for a in log.meta.of_account("X")] == ["C"]
    assert log.meta.of_account("none") == []
    assert {a.name for a in log.meta} == {"A", "B", "C"}
    for assignment in log.meta:  # a restore removes while iterating
        log.remove(assignment.name, assignment.account)
    assert len(log.meta) == 0


def test_load_counts_replicas() -> None:
    log = Log()
    log.assign("S", "s")
    log.apply(AssignStream("$G", StreamConfig(name="T", subjects=("t",)), 1, [3]))
    assert [log.meta.load(NodeId(node)) for node in (1, 2, 3, 4)] == [1, 1, 2, 0]


def test_every_field_of_a_configuration_survives_a_dump() -> None:
    source = StreamSource(
        name="O",
        opt_start_seq=2**62,
        filter_subject="f.>",
        external=External(api="$JS.hub.API", deliver="d"),
        subject_transforms=(SubjectTransform(src="a", dest="b"),),
    )
    config = StreamConfig(
        name="S",
        description="ünïcode \u0000",
        subjects=("s", "t.*"),
        retention=Retention.WORKQUEUE,
        discard=Discard.NEW,
        storage=Storage.MEMORY,
        compression=Compression.S2,
        max_bytes=2**62,
        num_replicas=3,
        no_ack=True,
        placement=Placement(cluster="c", tags=("a", "b")),
        mirror=source,
        sources=(source, source),
        republish=Republish(src="s", dest="r", headers_only=True),
        metadata={"z": "1", "a": "2"},
    )
    log = Log()
    result = assigned(log.apply(AssignStream("$G", config, 2**62, PEERS)))
    assert result.config == config
    other = AssignmentTable()
    other.load_dump(log.meta.dump())
    assert other.get("$G", "S") == result
    assert list(assigned(other.get("$G", "S")).config.metadata) == ["z", "a"]  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(10))
def test_replicas_agree_wherever_one_started_from_a_dump(seed: int) -> None:
    dice = random.Random(seed)
    log = Log()
    late: AssignmentTable | None = None
    for step in range(120):
        name = dice.choice("ABCDEF")
        subjects = [f"{dice.choice('xyz')}.{dice.choice('abc*>')}"]
        match dice.randrange(5):
            case 0:
                log.remove(name)
            case 1:
                log.reconfigure(name, *subjects)
            case 2:
                log.entries.append(b"")  # a new leader's first entry
                log.meta.advanced(Index(len(log.entries)))
            case _:
                log.assign(name, *subjects)
        if step == 50:
            late = AssignmentTable()
            late.load_dump(log.meta.dump())
        elif late is not None:
            if log.entries[-1]:
                late.apply(Index(len(log.entries)), log.entries[-1])
            else:
                late.advanced(Index(len(log.entries)))
            assert late.dump() == log.meta.dump(), f"seed {seed}, step {step}"
    replayed = AssignmentTable()
    for index, entry in enumerate(log.entries, 1):
        if entry:
            replayed.apply(Index(index), entry)
        else:
            replayed.advanced(Index(index))
    assert replayed.dump() == log.meta.dump()
    assert replayed.applied == len(log.entries)


def test_a_damaged_dump_or_command_raises() -> None:
    for damaged in (b"", b"\xc1", msgspec.msgpack.encode({"type": "unheard of"})):
        with pytest.raises(msgspec.MsgspecError):
            AssignmentTable().apply(Index(1), damaged)
        with pytest.raises(msgspec.MsgspecError):
            AssignmentTable().load_dump(damaged)


# -- placement -----------------------------------------------------------------------------------

NODES = [node_id(f"n{i}") for i in range(5)]


def place(name: str, replicas: int, **facts: dict[NodeId, int]) -> list[NodeId] | None:
    loads = facts.get("loads", {})
    dead = facts.get("dead", {})
    view = PlacementView(
        members=NODES,
        alive=lambda node: node not in dead,
        load=lambda node: loads.get(node, 0),
    )
    found = choose_peers(view, name=name, replicas=replicas)
    return None if isinstance(found, NoPlacement) else found


def test_the_least_loaded_connected_members_are_chosen() -> None:
    loads = {NODES[0]: 5, NODES[1]: 0, NODES[2]: 3, NODES[3]: 1, NODES[4]: 2}
    assert place("S", 3, loads=loads) == [NODES[1], NODES[3], NODES[4]]
    assert place("S", 3, loads=loads, dead={NODES[1]: 1}) == [NODES[3], NODES[4], NODES[2]]


def test_placement_fails_with_fewer_connected_members_than_replicas() -> None:
    dead = dict.fromkeys(NODES[:3], 1)
    assert place("S", 3, dead=dead) is None
    chosen = place("S", 2, dead=dead)
    assert chosen is not None
    assert set(chosen) == set(NODES[3:])


def test_placement_is_a_pure_function() -> None:
    chosen = place("S", 3)
    assert chosen is not None
    assert chosen == place("S", 3)
    assert len(set(chosen)) == 3
    view = PlacementView(members=NODES[::-1], alive=lambda _: True, load=lambda _: 0)
    shuffled = choose_peers(view, name="S", replicas=3)
    assert shuffled == chosen


def test_streams_of_equal_load_spread_and_so_do_their_leaders() -> None:
    loads = dict.fromkeys(NODES, 0)
    first: dict[NodeId, int] = dict.fromkeys(NODES, 0)
    for i in range(200):
        chosen = place(f"stream-{i}", 3, loads=loads)
        assert chosen is not None
        first[chosen[0]] += 1
        for node in chosen:
            loads[node] += 1
    assert max(loads.values()) - min(loads.values()) <= 1
    assert min(first.values()) >= 20  # 40 if it were even


def test_streams_of_many_subjects_are_compared_in_one_pass() -> None:
    """Pairwise these are 400 million comparisons on every node, while no client is served."""
    log = Log()
    log.assign("A", *(f"a.{i}" for i in range(20_000)))
    began = time.thread_time()
    assert isinstance(log.assign("B", *(f"b.{i}.*" for i in range(20_000))), Assignment)
    refused = log.assign("C", "x", "b.7.y")
    assert isinstance(refused, JetStreamError)
    assert refused.err_code == 10065
    assert time.thread_time() - began < 5


def test_the_table_knows_the_mirrors_of_a_stream() -> None:
    log = Log()

    def names(account: str = "$G", origin: str = "S") -> list[str]:
        return [one.name for one in log.meta.sums.mirrors_of(account, origin)]

    log.assign("S", "s")
    log.assign("Z", mirror=StreamSource(name="S"))
    log.assign("M", mirror=StreamSource(name="S"))
    log.assign("M", account="A", mirror=StreamSource(name="S"))
    assert (names(), names("A"), names(origin="Z")) == (["Z", "M"], ["M"], [])
    log.remove("Z")
    log.remove("S")
    assert names() == ["M"]
    log.reconfigure("M", "m")  # it is a stream of its own from now on
    assert names() == []
    assert names("A") == ["M"]
