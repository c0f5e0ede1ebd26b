"""Two protocols on a pipe in memory: order, flow control, both ways to end."""

from __future__ import annotations

import asyncio

import pytest

from broker.server.listeners.memory_pipe import HANDED_MAX, PipeEnd, connect_pair
from tests.support.cluster_fakes import run, turns


class Side(asyncio.Protocol):
    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.log: list[str] = []
        self.lost = 0

    def data_received(self, data: bytes) -> None:
        self.got.append(data)

    def pause_writing(self) -> None:
        self.log.append("pause")

    def resume_writing(self) -> None:
        self.log.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1


def pair() -> tuple[Side, PipeEnd, Side, PipeEnd]:
    one, other = Side(), Side()
    left, right = connect_pair(asyncio.get_running_loop(), one, other)
    return one, left, other, right


def test_bytes_arrive_in_order_and_never_within_the_call() -> None:
    async def test() -> None:
        one, left, other, right = pair()
        left.write(b"a")
        right.write(b"x")
        left.writelines([b"b", b"c"])
        assert (one.got, other.got) == ([], [])
        await turns()
        assert (one.got, other.got) == ([b"x"], [b"abc"])

    run(test())


def test_large_writes_are_handed_over_in_several_turns() -> None:
    async def test() -> None:
        _, left, other, _ = pair()
        for _ in range(5):
            left.write(b"." * (HANDED_MAX // 2))
        await turns()
        assert [len(piece) for piece in other.got] == [HANDED_MAX, HANDED_MAX, HANDED_MAX // 2]

    run(test())


def test_a_writer_pauses_until_a_slow_reader_has_read() -> None:
    async def test() -> None:
        one, left, other, right = pair()
        left.set_write_buffer_limits(high=10, low=5)
        right.pause_reading()
        left.write(b"0123456789")
        assert one.log == []
        left.write(b"0")
        await turns()
        assert (one.log, other.got, left.get_write_buffer_size()) == (["pause"], [], 11)
        right.resume_reading()
        await turns()
        assert (one.log, other.got) == (["pause", "resume"], [b"01234567890"])

    run(test())


@pytest.mark.parametrize("paused", [False, True])
def test_close_hands_over_what_was_written_before_both_sides_end(*, paused: bool) -> None:
    async def test() -> None:
        one, left, other, right = pair()
        if paused:
            right.pause_reading()
        left.write(b"last words")
        left.close()
        left.write(b"too late")
        assert left.is_closing()
        await turns()
        if paused:
            assert (one.lost, other.lost) == (0, 0)
            right.resume_reading()
            await turns()
        assert other.got == [b"last words"]
        assert (one.lost, other.lost) == (1, 1)
        assert right.is_closing()

    run(test())


def test_abort_drops_what_was_under_way() -> None:
    async def test() -> None:
        one, left, other, right = pair()
        left.write(b"lost")
        right.abort()
        right.close()
        await turns()
        assert (one.got, other.got) == ([], [])
        assert (one.lost, other.lost) == (1, 1)

    run(test())
