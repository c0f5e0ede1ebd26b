"""What a node decides about a publish before it is forwarded."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from broker.cluster.meta.assignments import Assignment
from broker.cluster.publish.admission import Admission
from broker.jetstream.config.stream_config import Retention, Storage, StreamConfig, SubjectTransform
from raft import NodeId

HERE, THERE = NodeId(1), NodeId(2)
GROUP = 1001


@dataclass
class Disk:
    full: bool = False
    failure: BaseException | None = None


@dataclass
class FilteredConsumer:
    subject: bytes

    def wants(self, subject: bytes) -> bool:
        return subject == self.subject


@dataclass
class LocalStream:
    consumers: dict[str, FilteredConsumer] = field(default_factory=dict)


@dataclass
class LocalReplica:
    assignment: Assignment
    stream: LocalStream = field(default_factory=LocalStream)


def assigned(
    *peers: NodeId,
    storage: Storage = Storage.FILE,
    retention: Retention = Retention.LIMITS,
    transform: SubjectTransform | None = None,
) -> Assignment:
    config = StreamConfig(
        name="S",
        subjects=["a.*"],
        storage=storage,
        retention=retention,
        subject_transform=transform,
    )
    return Assignment("A", config, created_ns=0, group=GROUP, peers=list(peers))


def admission(
    disk: Disk, assignment: Assignment, *, leader: NodeId | None, replica: LocalReplica | None
) -> Admission:
    return Admission(
        node=HERE,
        disk=disk,
        writer=disk,
        leader=lambda _group: leader,
        replica=lambda _group: replica,
        assignment=lambda _account, name: assignment if name == "S" else None,
    )


@pytest.mark.parametrize(
    ("peers", "leader", "storage", "refuses"),
    [
        ((HERE,), HERE, Storage.FILE, True),
        ((HERE,), None, Storage.FILE, True),  # nobody else can lead it
        ((HERE, THERE), HERE, Storage.FILE, True),
        ((HERE, THERE), THERE, Storage.FILE, False),  # its disk may be fine
        ((HERE, THERE), None, Storage.FILE, False),
        ((HERE,), HERE, Storage.MEMORY, False),
    ],
)
@pytest.mark.parametrize("disk", [Disk(full=True), Disk(failure=OSError("broken"))])
def test_a_bad_disk_refuses_only_what_it_would_have_to_store(
    disk: Disk, peers: tuple[NodeId, ...], leader: NodeId | None, storage: Storage, refuses: bool
) -> None:
    assignment = assigned(*peers, storage=storage)
    replica = LocalReplica(assignment)
    assert (
        admission(disk, assignment, leader=leader, replica=replica).disk_refuses(GROUP) is refuses
    )
    fine = admission(Disk(), assignment, leader=leader, replica=replica)
    assert not fine.disk_refuses(GROUP)
    elsewhere = admission(disk, assignment, leader=leader, replica=None)
    assert not elsewhere.disk_refuses(GROUP)


def test_a_trace_learns_the_stored_subject_and_whether_a_consumer_wants_it() -> None:
    transform = SubjectTransform(src="a.*", dest="b.{{wildcard(1)}}")
    assignment = assigned(HERE, retention=Retention.INTEREST, transform=transform)
    replica = LocalReplica(assignment, LocalStream({"C": FilteredConsumer(b"b.1")}))
    here = admission(Disk(), assignment, leader=HERE, replica=replica)
    assert here.stored_as("A", "S", b"a.1") == (b"b.1", False)
    assert here.stored_as("A", "S", b"a.2") == (b"b.2", True)
    assert here.stored_as("A", "gone", b"a.2") == (b"a.2", False)
    elsewhere = admission(Disk(), assignment, leader=THERE, replica=None)
    assert elsewhere.stored_as("A", "S", b"a.2") == (b"b.2", False), "consumers are unknown here"
