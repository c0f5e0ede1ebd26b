"""What a node decides about a publish before it is forwarded."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from broker.cluster.meta.assignments import Assignment
from broker.cluster.publish.admission import Admission
from broker.jetstream.config.stream_config import Retention, Storage, StreamConfig, SubjectTransform
from raft import NodeId

HERE, THERE, ELSEWHERE = NodeId(1), NodeId(2), NodeId(3)
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
    disk: Disk, assignment: Assignment, replica: LocalReplica | None, *full_peers: NodeId
) -> Admission:
    return Admission(
        node=HERE,
        disk=disk,
        writer=disk,
        full_peers=set(full_peers),
        replica=lambda _group: replica,
        assignment=lambda _account, name: assignment if name == "S" else None,
    )


@pytest.mark.parametrize(
    ("peers", "full_peers", "storage", "refuses"),
    [
        ((HERE,), (), Storage.FILE, True),
        ((HERE,), (), Storage.MEMORY, False),
        ((HERE, THERE, ELSEWHERE), (), Storage.FILE, False),  # another one leads it soon
        ((HERE, THERE, ELSEWHERE), (THERE,), Storage.FILE, True),  # no majority could store it
        ((THERE,), (), Storage.FILE, False),
        ((THERE,), (THERE,), Storage.FILE, True),
        ((THERE,), (THERE,), Storage.MEMORY, False),
    ],
)
@pytest.mark.parametrize("disk", [Disk(full=True), Disk(failure=OSError("broken"))])
def test_bad_disks_refuse_only_what_no_majority_could_store(
    disk: Disk,
    peers: tuple[NodeId, ...],
    full_peers: tuple[NodeId, ...],
    storage: Storage,
    refuses: bool,
) -> None:
    assignment = assigned(*peers, storage=storage)
    here = admission(disk, assignment, LocalReplica(assignment), *full_peers)
    assert here.disk_refuses("A", "S", GROUP) is refuses
    fine = admission(Disk(), assignment, LocalReplica(assignment))
    assert not fine.disk_refuses("A", "S", GROUP)


def test_a_trace_learns_the_stored_subject_and_whether_a_consumer_wants_it() -> None:
    transform = SubjectTransform(src="a.*", dest="b.{{wildcard(1)}}")
    assignment = assigned(HERE, retention=Retention.INTEREST, transform=transform)
    replica = LocalReplica(assignment, LocalStream({"C": FilteredConsumer(b"b.1")}))
    here = admission(Disk(), assignment, replica)
    assert here.stored_as("A", "S", b"a.1") == (b"b.1", False)
    assert here.stored_as("A", "S", b"a.2") == (b"b.2", True)
    assert here.stored_as("A", "gone", b"a.2") == (b"a.2", False)
    elsewhere = admission(Disk(), assignment, None)
    assert elsewhere.stored_as("A", "S", b"a.2") == (b"b.2", False), "consumers are unknown here"
