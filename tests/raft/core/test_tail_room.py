"""The tails of all groups of a node hold a bounded number of bytes together."""

from __future__ import annotations

from raft.core.log import CROWDED_TAIL_BYTES, MemoryReader, RaftLog, TailRoom
from raft.types import Index
from tests.support.core_rig import entry

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
