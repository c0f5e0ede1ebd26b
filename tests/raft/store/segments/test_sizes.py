"""The log follows what is stored and written: small at rest beside a small store."""

from __future__ import annotations

import pytest

from chaos.sim.files import SimJobs, SimLogFiles
from raft.core.messages import Entry
from raft.store.database import StoreTuning
from raft.store.disk_space import Space
from raft.store.node_log import LogPlace, NodeLog
from raft.store.segments.log import SegmentBusy
from raft.store.segments.sizes import SegmentSizes, SegmentSizing
from raft.store.write_batch import LogBatch
from raft.types import GroupId, HardState, Index, NodeId, SnapshotMeta, Term

MB = 1 << 20
KB = 1 << 10
LIMITS = StoreTuning().segment_sizes()
SMALL = SegmentSizes(
    first=64 * KB, largest=512 * KB, log_goal=3 * MB, spare_max=3 * MB, rest=64 * KB
)
G = GroupId(1)


@pytest.mark.parametrize("stored", [50 * MB, 114 * MB, 220 * MB, 530 * MB, 5000 * MB])
def test_a_log_at_rest_takes_less_than_half_of_what_is_stored(stored: int) -> None:
    sizing = SegmentSizing(LIMITS)
    sizing.tick(stored_bytes=stored, groups=10)
    now = sizing.now
    # All of it: the log, the segment that is prepared, and spare files.
    assert now.log_goal + now.largest + now.spare_max < 0.49 * stored
    assert now.largest >= 4 * MB


def test_a_busy_log_has_large_segments_until_it_rests() -> None:
    sizing = SegmentSizing(LIMITS)
    for _ in range(200):  # ten seconds, 20 MB/s
        sizing.written(MB)
        sizing.tick(stored_bytes=0, groups=1)
    busy = sizing.now
    assert busy.log_goal > 60 * MB
    assert busy.largest >= 10 * MB
    assert busy.spare_max > 60 * MB
    for _ in range(100):  # a pause of five seconds changes little
        sizing.tick(stored_bytes=0, groups=1)
    assert sizing.now.log_goal > busy.log_goal * 3 // 4
    for _ in range(1000):
        sizing.tick(stored_bytes=0, groups=1)
    assert sizing.now.log_goal < 17 * MB
    assert sizing.now.spare_max < 6 * MB


def test_many_groups_have_the_space_that_their_records_need() -> None:
    sizing = SegmentSizing(LIMITS)
    sizing.tick(stored_bytes=0, groups=10_000)
    assert sizing.now.log_goal > 50 * MB


def put(log: NodeLog, jobs: SimJobs, batch: LogBatch) -> None:
    for _ in range(5):
        try:
            log.write(batch, frees=True)
        except SegmentBusy:
            jobs.run()
        else:
            return
    pytest.fail("there is no segment")


def test_a_log_at_rest_gives_back_what_it_had_prepared() -> None:
    files, jobs = SimLogFiles(), SimJobs()
    place = LogPlace(files, SimLogFiles(), lambda: jobs, lambda: 7, lambda _size: Space.AMPLE)
    log = NodeLog(place, SMALL)

    def write(first: int, count: int) -> None:
        batch = LogBatch()
        batch.put_hard_state(G, HardState(Term(1), NodeId(1), Index(0)))
        batch.put_entries(
            G, [Entry(Index(first + i), Term(1), bytes(10_000)) for i in range(count)]
        )
        put(log, jobs, batch)

    for round_ in range(100):
        jobs.run()
        write(round_ * 10 + 1, 10)
        log.tick(stored_bytes=MB)
    cut = LogBatch()
    cut.cut(G, SnapshotMeta(Index(990), Term(1)))
    put(log, jobs, cut)
    log.flush()
    for _ in range(20):
        log.tick(stored_bytes=MB)
        jobs.run()
    busy = sum(files.open(name).size for name in files.names())
    for _ in range(4000):
        log.tick(stored_bytes=MB)
        jobs.run()
    rest = sum(files.open(name).size for name in files.names())
    assert busy > 2 * MB
    assert rest < MB
    write(1001, 3)
    assert log.reader(G).last_index() == 1003
    assert [e.index for e in log.reader(G).entries(Index(991), Index(1004), MB)] == [
        *range(991, 1004)
    ]
    log.close()
    again = NodeLog(place, SMALL)
    assert again.reader(G).last_index() == 1003
    again.close()


def test_a_write_of_many_segments_is_not_refused_for_ever() -> None:
    """As when a follower that was away gets all that it missed."""
    files, jobs = SimLogFiles(), SimJobs()
    place = LogPlace(files, SimLogFiles(), lambda: jobs, lambda: 7, lambda _size: Space.AMPLE)
    log = NodeLog(place, SMALL)
    batch = LogBatch()
    batch.put_hard_state(G, HardState(Term(1), NodeId(1), Index(0)))
    batch.put_entries(G, [Entry(Index(i), Term(1), bytes(500_000)) for i in range(1, 41)])
    for _ in range(4):
        log.tick()
        jobs.run()
        try:
            log.write(batch)
            break
        except SegmentBusy:
            other = LogBatch()
            other.put_hard_state(GroupId(2), HardState(Term(1), NodeId(1), Index(0)))
            put(log, jobs, other)
    assert log.reader(G).last_index() == 40
    log.close()
