"""The tails of all groups of a node hold a bounded number of bytes together."""

from __future__ import annotations

import pytest

from raft.core.log import CROWDED_TAIL_BYTES, MemoryReader, RaftLog, TailRoom
from raft.types import Index
from tests.support.core_rig import A, B, C, core_of, drain, elect, entry

TAIL = 1 << 20


def filled(room: TailRoom, entries: int = 14) -> RaftLog:
    log = RaftLog(MemoryReader(), tail_bytes_max=TAIL, room=room)
    for index in range(1, entries + 1):
        log.append(entry(index, 1, bytes(64 << 10)))
        log.take_unwritten(1 << 40)
        log.persisted = log.written
        log.release(Index(index))
    return log


def test_many_tails_together_stay_near_the_bound() -> None:
    room = TailRoom(4 * TAIL)
    logs = [filled(room) for _ in range(20)]
    assert room.used == sum(log._tail_bytes for log in logs)
    assert room.used <= 4 * TAIL + 20 * CROWDED_TAIL_BYTES
    assert logs[0]._tail_bytes > TAIL // 2  # the first ones had room


def test_a_group_that_leaves_makes_room() -> None:
    room = TailRoom(4 * TAIL)
    for _ in range(20):
        filled(room).leave()
    assert room.used == 0
    assert filled(room)._tail_bytes > TAIL // 2


def test_a_tail_that_no_follower_needs_is_dropped() -> None:
    room = TailRoom(4 * TAIL)
    log = filled(room)
    log.append(entry(15, 1, bytes(64 << 10)))
    log.release(Index(14), needed=False)
    assert [log.term(Index(index)) for index in (14, 15)] == [1, 1]
    assert room.used == log._tail_bytes < TAIL // 8, "what is not on disk stays"
    log.take_unwritten(1 << 40)
    log.persisted = log.written
    log.release(Index(15), needed=False)
    assert room.used == log._tail_bytes == 0
    assert log.term(Index(15)) == 1


@pytest.mark.parametrize("alone", [True, False])
def test_a_leader_keeps_a_tail_for_its_followers_only(alone: bool) -> None:
    core = core_of(A, (A,) if alone else (A, B, C))
    elect(core, *(() if alone else (B,)))
    for _ in range(20):
        core.propose(bytes(1000))
        for _ in range(2):
            ready = drain(core)
            if ready.committed:
                core.applied(ready.committed[-1].index)
    kept = core.log._tail_bytes
    assert kept < 3000 if alone else kept > 20_000
