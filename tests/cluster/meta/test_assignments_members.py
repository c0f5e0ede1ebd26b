"""The table of streams while replicas move: wanted peers, voters and holders."""

from __future__ import annotations

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
    RecordMembers,
    RenewStream,
    encode_command,
)
from broker.cluster.meta.placement import NoPlacement, PlacementView, choose_peers
from broker.jetstream.config import StreamConfig
from broker.jetstream.errors import JetStreamError
from raft import Index, NodeId

CONFIG = StreamConfig(name="S", subjects=("s",))


class Log:
    def __init__(self, peers: list[int]) -> None:
        self.meta = AssignmentTable()
        self.do(AssignStream("$G", CONFIG, 5, peers))

    def do(self, command: MetaCommand) -> MetaResult:
        index = Index(self.meta.applied + 1)
        return self.meta.apply(index, encode_command(command))[1]

    def move(self, *peers: int) -> None:
        self.do(ReconfigureStream("$G", CONFIG, list(peers), 77))

    def record(self, peers: list[int], members: list[int]) -> MetaResult:
        return self.do(RecordMembers("$G", "S", self.stream.group, peers, members))

    @property
    def stream(self) -> Assignment:
        found = self.meta.get("$G", "S")
        assert found is not None
        return found


def test_members_stay_until_their_leader_reports_others() -> None:
    log = Log([1])
    log.move(1, 2, 3)
    assert (log.stream.peers, log.stream.members, log.stream.founders) == ([1, 2, 3], [1], [1])
    assert log.stream.holders == {1, 2, 3}
    assert (log.stream.asked_ns, log.stream.origin) == (77, 1)
    log.record([1, 2, 3], [1, 2, 3])
    log.move(1)
    assert log.stream.holders == {1, 2, 3}  # their replicas may still be needed
    log.record([1], [1])
    assert log.stream.holders == {1}
    assert log.stream.founders == [1]


def test_an_outdated_report_of_members_is_refused() -> None:
    log = Log([1])
    log.move(1, 2, 3)
    log.move(1)
    refused = log.record([1, 2, 3], [1, 2, 3])
    assert isinstance(refused, JetStreamError)
    assert log.stream.members == [1]
    other = log.do(RecordMembers("$G", "S", log.stream.group + 1, [1], [1, 2]))
    assert isinstance(other, JetStreamError)
    assert log.stream.members == [1]


def test_an_update_that_names_the_same_peers_moves_nothing() -> None:
    log = Log([1, 2, 3])
    log.do(ReconfigureStream("$G", CONFIG, [3, 2, 1], 99))
    log.do(ReconfigureStream("$G", CONFIG))
    assert (log.stream.peers, log.stream.asked_ns) == ([1, 2, 3], 0)


def test_the_first_configuration_is_remembered() -> None:
    """A replica that joins late replays the log from its beginning."""
    log = Log([1])
    assert log.stream.initial_config == CONFIG
    for limit in (10, 20):
        later = msgspec.structs.replace(CONFIG, max_msgs=limit)
        log.do(ReconfigureStream("$G", later))
        assert (log.stream.config, log.stream.initial_config) == (later, CONFIG)
    log.do(RenewStream("$G", "S", log.stream.group, [1]))
    assert log.stream.initial_config == log.stream.config


def test_renewing_a_stream_twice_creates_one_new_group() -> None:
    log = Log([1])
    old = log.stream.group
    log.move(1, 2, 3)
    renewed = log.do(RenewStream("$G", "S", old, [1]))
    assert isinstance(renewed, Assignment)
    assert renewed.group == FIRST_STREAM_GROUP + log.meta.applied
    assert renewed.founders == renewed.members == renewed.peers == [1, 2, 3]
    assert (renewed.created_ns, renewed.asked_ns) == (5, 0)
    assert log.do(RenewStream("$G", "S", old, [1])) == renewed


def test_a_stream_with_other_voters_is_not_renewed() -> None:
    """The node that asks does not know yet that others hold everything."""
    log = Log([1])
    log.move(1, 2, 3)
    log.record([1, 2, 3], [1, 2, 3])
    before = log.stream
    assert log.do(RenewStream("$G", "S", before.group, [1])) == before
    assert log.stream == before


def test_records_of_streams_that_were_never_moved_are_readable() -> None:
    old = {"account": "$G", "config": CONFIG, "created_ns": 1, "group": 1001, "peers": [3, 1]}
    meta = AssignmentTable()
    meta.load_dump(msgspec.msgpack.encode((9, [old])))
    stream = meta.get("$G", "S")
    assert stream is not None
    assert stream.founders == stream.members == stream.peers == [3, 1]
    again = AssignmentTable()
    again.load_dump(meta.dump())
    assert again.dump() == meta.dump()


@pytest.mark.parametrize(
    ("replicas", "keep", "away", "chosen"),
    [
        (3, [4], [], [4, 1, 2]),  # the least loaded join
        (1, [2, 4, 5], [], [2]),  # the first one, which leads, stays
        (1, [2, 4, 5], [2], [4]),  # unless it is disconnected
        (3, [2, 4], [2, 5], [4, 2, 1]),  # a disconnected node is still a member
        (4, [2], [1, 3], None),
    ],
)
def test_present_peers_are_preferred(
    replicas: int, keep: list[int], away: list[int], chosen: list[int] | None
) -> None:
    view = PlacementView(
        members=[NodeId(n) for n in (5, 4, 3, 2, 1)],
        alive=lambda node: node not in away,
        load=int,
    )
    kept = [NodeId(n) for n in keep]
    found = choose_peers(view, name="S", replicas=replicas, keep=kept)
    assert (None if isinstance(found, NoPlacement) else found) == chosen
